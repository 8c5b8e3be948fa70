"""The engine: what a method and a solver are, who is computed where, client memory, checkpoints, one round."""
