"""Barycentres of Gaussians: the one Gaussian that is nearest to many in the mean, by what "near" means.

All but one are means of something, so they travel as sums. With weights w_k that add to 1, means m_k, covariances V_k,

    reverse_kl    argmin_q Σ w_k KL(q || q_k)    Σ w_k (V_k⁻¹ m_k, V_k⁻¹), of the natural parameters: Π q_k^w_k
    conflation    Π q_k^(K w_k)                  K times that: the product of the K Gaussians where all weigh alike
    forward_kl    argmin_q Σ w_k KL(q_k || q)    Σ w_k (m_k, V_k + m_k m_kᵀ), of the moments of their mixture
    wasserstein   argmin_q Σ w_k W2(q, q_k)²     Σ w_k (m_k, √V_k), where the V_k commute
    arithmetic    no divergence's                Σ w_k (m_k, V_k)
    log_variance  no divergence's                Σ w_k (m_k, log V_k)

The first and the fourth are those of BA-BFL (Jamoussi et al. 2024), the last two what it compares them with; full
covariances are ours. Those of a Wasserstein barycentre are no mean: V = Σ w_k (V^½ V_k V^½)^½ is a fixed point of all
V_k together, so the posteriors themselves travel and every rank finds it (Álvarez-Esteban et al. 2016).

Second moments are taken around a centre that everybody knows (the server's mean): V + m mᵀ around 0 loses a small V in
float32, and the covariance that comes back of it need not be positive.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fedddp.core import gaussian
from fedddp.core.gaussian import Family


class Rule(NamedTuple):
    """A pair of statistics whose means over clients say the barycentre; both ways know the centre [P]."""

    # of lam [..., ...]: [..., P], and as a precision is
    parts: Callable[[Family, Tensor, Tensor], tuple[Tensor, Tensor]]
    whole: Callable[[Family, Tensor, Tensor, Tensor], Tensor]  # lam of two mean statistics
    together: bool = False  # whether full covariances need all clients' posteriors at once: `transported`
    product: bool = False  # whether it is K times the mean


def _natural(family: Family, lam: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    return family.shift(lam), family.precision(lam)


def _of_natural(family: Family, shift: Tensor, precision: Tensor, centre: Tensor) -> Tensor:
    empty = family.linear(-shift)
    family.precision(empty).copy_(precision)  # a view
    return empty


def _moments(family: Family, lam: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    mean, covariance = _spread(family, lam, centre)
    return mean, covariance + square(family, mean - centre)


def _of_moments(family: Family, mean: Tensor, second: Tensor, centre: Tensor) -> Tensor:
    return _of_spread(family, mean, second - square(family, mean - centre), centre)


def _spread(family: Family, lam: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    return family.mean(lam), gaussian.inverse(family, family.precision(lam))


def _of_spread(family: Family, mean: Tensor, covariance: Tensor, centre: Tensor) -> Tensor:
    return family.natural(mean, gaussian.inverse(family, covariance))


def _logs(family: Family, lam: Tensor, centre: Tensor) -> tuple[Tensor, Tensor]:
    return family.mean(lam), -_spectral(family, family.precision(lam), torch.log)


def _of_logs(family: Family, mean: Tensor, log: Tensor, centre: Tensor) -> Tensor:
    return family.natural(mean, _spectral(family, -log, torch.exp))


def _spectral(family: Family, matrix: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """A function of a symmetric matrix, as far as a family holds it."""
    if family is not gaussian.full:
        return change(matrix)
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * change(values).unsqueeze(-2)) @ vectors.mT


def transported(lam: Tensor, weight: Tensor, steps: int = 100) -> Tensor:
    """The Wasserstein barycentre of full Gaussians lam [K, P + 1, P], to float64's last digits.

    V <- V^-½ (Σ w_k (V^½ V_k V^½)^½)² V^-½ comes nearer in every step, from any V; here from the arithmetic mean.
    """
    family, share = gaussian.full, (weight.double() / weight.sum()).view(-1, 1, 1)
    root = lambda matrix: _spectral(family, matrix, lambda values: values.clamp_min(0).sqrt())  # noqa: E731
    each = gaussian.inverse(family, family.precision(lam.double()))
    found = (share * each).sum(0)
    for _ in range(steps):
        half = root(found)
        inner = (share * root(half @ each @ half)).sum(0)
        before, back = found, torch.linalg.inv(half)
        found = back @ inner @ inner @ back
        found = (found + found.mT) / 2
        if float((found - before).norm()) <= 1e-14 * float(before.norm()):
            break
    mean = (share.squeeze(-1) * family.mean(lam.double())).sum(0)
    return family.natural(mean, gaussian.inverse(family, found)).to(lam)


def square(family: Family, mean: Tensor) -> Tensor:
    """m mᵀ, as far as a family holds it."""
    if family is gaussian.full:
        return mean.unsqueeze(-1) * mean.unsqueeze(-2)
    return mean.square().mean(-1, keepdim=True) if family is gaussian.isotropic else mean.square()


RULES: dict[str, Rule] = {
    "reverse_kl": Rule(_natural, _of_natural),
    "conflation": Rule(_natural, _of_natural, product=True),
    "forward_kl": Rule(_moments, _of_moments),
    "wasserstein": Rule(
        lambda family, lam, centre: (family.mean(lam), family.precision(lam).rsqrt()),
        lambda family, mean, deviation, centre: family.natural(mean, deviation.square().reciprocal()),
        together=True,
    ),
    "arithmetic": Rule(_spread, _of_spread),
    "log_variance": Rule(_logs, _of_logs),
}
