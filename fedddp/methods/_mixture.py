"""A client's posterior as a mixture of Laplace approximations, and what a server's descent asks of it."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Mixture(NamedTuple):
    """Σ_m weight_m N(mode_m, Λ_m⁻¹); a client's components come first, what lies behind has weight 0."""

    modes: Tensor  # [C, L, P]
    curvature: Tensor  # [C, L, F] flat, as its structure keeps it
    logdet: Tensor  # [C, L] of Λ
    weight: Tensor  # [C, L] all 0 before the client has trained


def slope(mixture: Mixture, theta: Tensor, times: Callable[[Tensor, Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Gradient [C, M, P] and value [C, M] of -log mixture at theta [M, P], without the constant of the Gaussians.

    `times` multiplies Λ, given by rows of curvature, with vectors. One client and one model at a time: a component is
    as large as the model.
    """
    count, models = len(mixture.weight), len(theta)
    slopes = theta.new_zeros(count, models, theta.shape[1])
    values = theta.new_zeros(count, models, dtype=torch.float64)
    for client in range(count):
        own = Mixture(*(leaf[client, : int((mixture.weight[client] > 0).sum())] for leaf in mixture))
        for model in range(models if len(own.weight) else 0):
            away = theta[model] - own.modes
            pull = times(own.curvature, away)
            energy = 0.5 * (away * pull).sum(1, dtype=torch.float64)
            logits = own.weight.log() + 0.5 * own.logdet - energy
            slopes[client, model] = logits.softmax(0).to(pull.dtype) @ pull
            values[client, model] = -logits.logsumexp(0)
    return slopes, values


def medians(modes: Tensor, weight: Tensor, count: int) -> Tensor:
    """Coordinate-wise medians [count, P] over the components [K, L, P] that began at each of `count` initialisations.

    Where nobody here has any from one of them, over all components.
    """
    began = torch.arange(modes.shape[1], device=modes.device) % count
    found = [modes[(weight > 0) & (began == start)] for start in range(count)]
    return torch.stack([_median(some if len(some) else modes[weight > 0]) for some in found])


def _median(values: Tensor) -> Tensor:
    """Over the first axis; of an even number, the mean of the middle two."""
    ordered, half = values.sort(0).values, (len(values) - 1) / 2
    return (ordered[int(half)] + ordered[-int(half) - 1]) / 2
