"""One run: building, the job, its rounds, checkpoints and end, its folder; predictions of a finished one."""
