"""Runs as jobs: a grid becomes runs, runs become processes here or a Slurm array, and their states a table."""
