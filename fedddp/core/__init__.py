"""The words everything speaks in: checks, streams, parameters, Gaussians, objectives, examples and whose they are."""
