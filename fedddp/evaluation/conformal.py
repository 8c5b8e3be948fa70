"""Federated conformal prediction: sets of classes that hold the true one as often as asked, from sums over clients.

    score       s = 1 - p(true class)                                         of each held-out example
    threshold   q = the ⌈(N + K) coverage⌉-th smallest of the N scores of K clients; 1 where there are too few
    set         {y : 1 - p(y) <= q}

For a new example that is exchangeable with those of client k, where k is drawn with probability (n_k + 1)/(N + K), the
set holds the true class with a probability from `coverage` to coverage + K/(N + K) (Lu et al. 2023, Federated Conformal
Predictors; reconstructed from the definition of partial exchangeability). For one client it may do so less often.

Clients send how many of their scores are in each of BINS equal bins, and no scores: q is the upper end of the bin where
the sum over clients reaches the rank, at most 1/BINS above the smallest threshold.
"""

from math import ceil

import torch
from torch import Tensor

BINS = 10_000
EXACT = 1e-9  # 10 x 0.9 may be a little more than 9


def scores(probabilities: Tensor, targets: Tensor) -> Tensor:
    """[B] of probabilities [B, classes]."""
    return 1 - probabilities.gather(-1, targets.unsqueeze(-1)).squeeze(-1)


def histogram(values: Tensor) -> Tensor:
    """[BINS] how many of the values from 0 to 1 are in each bin."""
    return torch.bincount((values * BINS).floor().long().clamp(0, BINS - 1), minlength=BINS)


def threshold(counts: Tensor, clients: int, coverage: float) -> float:
    """q of summed histograms."""
    if not 0 < coverage < 1:
        raise ValueError(f"coverage={coverage}: must be in (0, 1)")
    rank = max(1, ceil((int(counts.sum()) + clients) * coverage - EXACT))
    reached = counts.cumsum(0) >= rank
    return (int(reached.int().argmax()) + 1) / BINS if bool(reached.any()) else 1.0


def sets(probabilities: Tensor, q: float) -> Tensor:
    """[B, classes] which classes are in each example's set."""
    return 1 - probabilities <= q


def temper(probabilities: Tensor, temperature: float) -> Tensor:
    """Probabilities to the power 1/temperature, made to add up to 1."""
    tiny = torch.finfo(probabilities.dtype).tiny
    return (probabilities.clamp_min(tiny).log() / temperature).softmax(-1)
