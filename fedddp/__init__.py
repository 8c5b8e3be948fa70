"""Federated and Bayesian learning as collectives: clients on ranks, servers as sums."""

__version__ = "0.1.0"
