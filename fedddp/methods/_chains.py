"""Markov chains of parameters at the server: their running moments, and how far they can be trusted.

Of M chains with n states each, with means m_c and variances s_c² of every parameter, in the mean over parameters

    W = Mean_c s_c²,    B = Var_c m_c,    V = (n - 1)/n W + B
    R-hat = √(V/W)                 (Gelman & Rubin 1992): near 1 once all chains see the same distribution
    ess   = M V/B                  independent draws with the same error of the mean, at most n M are believed

B is the variance of one chain's mean, so ess is what it says without a model of the autocorrelation; it takes at least
two chains, and it is as rough as a variance of M numbers, averaged over parameters.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Chains(NamedTuple):
    now: Tensor  # [M, P] the states
    kept: Tensor  # [S, P] the newest states that predictions average, in a ring
    made: Tensor  # [] states of the ring so far, int64
    rounds: Tensor  # [] rounds so far, int64
    used: Tensor  # [] states in the moments, of each chain, int64
    mean: Tensor  # [M, P] of them
    scatter: Tensor  # [M, P] sum of squares around the mean


def begin(starts: Tensor, keep: int) -> Chains:
    zero = torch.zeros((), dtype=torch.int64, device=starts.device)
    return Chains(
        starts, starts.new_zeros(keep, starts.shape[1]), zero, zero, zero, torch.zeros_like(starts), starts * 0
    )


def extend(chains: Chains, now: Tensor, burn_in: int, thin: int) -> Chains:
    """With a round's new states [M, P]; after `burn_in` rounds they count, and every thin-th is kept."""
    rounds = chains.rounds + 1
    if int(rounds) <= burn_in:
        return chains._replace(now=now, rounds=rounds)
    count = chains.used + 1
    away = now - chains.mean
    mean = chains.mean + away / count
    scatter = chains.scatter + away * (now - mean)
    kept, made = chains.kept, chains.made
    if (int(rounds) - burn_in - 1) % thin == 0:
        place = (int(made) + torch.arange(len(now), device=now.device)) % len(kept)
        kept, made = kept.index_copy(0, place[-len(kept) :], now[-len(kept) :]), made + len(now)
    return Chains(now, kept, made, rounds, count, mean, scatter)


def samples(chains: Chains) -> Tensor:
    """[at most S, P] of the ring; the states themselves before there are any."""
    made = int(chains.made)
    return chains.kept[:made] if made else chains.now


def diagnostics(chains: Chains) -> dict[str, float]:
    """R-hat and the effective sample size, as soon as there are two chains of two states."""
    number, count = len(chains.now), int(chains.used)
    if number < 2 or count < 2:
        return {}
    within = (chains.scatter.double() / (count - 1)).mean()
    between = chains.mean.double().var(0).mean()
    total = (count - 1) / count * within + between
    return {
        "rhat": float((total / within).sqrt()),
        "ess": min(float(number * total / between), float(number * count)),
    }
