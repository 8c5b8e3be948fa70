"""A client's posterior as a mixture of Laplace approximations, and what a server's descent asks of it."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

PIECE = 512  # numbers that are added in their own precision
CACHED = 1 << 21  # numbers of a portion on a processor
MOST = 1 << 26  # and elsewhere: 256 MB in single precision, a few times


class Mixture(NamedTuple):
    """Σ_m weight_m N(mode_m, Λ_m⁻¹); a client's components come first, what lies behind has weight 0."""

    modes: Tensor  # [C, L, P] parameters of each component
    curvature: Tensor  # [C, L, F] flat, as its structure keeps it
    logdet: Tensor  # [C, L] log-determinants of Λ
    weight: Tensor  # [C, L] all 0 before the client has trained


def slope(
    mixture: Mixture,
    theta: Tensor,
    times: Callable[[Tensor, Tensor], Tensor],
    temperature: float = 1.0,
    more: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Gradient [C, M, P] and value [C, M] of -log mixture at theta [M, P], without the constant of the Gaussians.

        E_m = ½ (theta - mode_m)ᵀ Λ_m (theta - mode_m),    l_m = log weight_m + ½ log |Λ_m| - E_m
        value = -logsumexp_m l_m,    gradient = Σ_m softmax(l)_m Λ_m (theta - mode_m)

    `times` multiplies T Λ, given by rows of curvature [R, F], with vectors [R, M, P]; `more` [C] is what each client's
    T Λ has of the identity beside that. Both are 0 for a client without
    components. As many clients, or models of one client, are computed together as `_portions` says.
    """
    (count, parts), models = mixture.weight.shape, len(theta)
    slopes = theta.new_empty(count, models, theta.shape[1])
    values = theta.new_empty(count, models, dtype=torch.float64)
    own = known(mixture).unsqueeze(1)
    scale = own.unsqueeze(2).double() / temperature
    prior = torch.where(own, torch.add(mixture.weight.log(), mixture.logdet, alpha=0.5), 0.0)  # no NaN where all are 0
    for clients, some in _portions(count, parts, models, theta):
        away = theta[some] - mixture.modes[clients].flatten(0, 1).unsqueeze(1)
        pull = times(mixture.curvature[clients].flatten(0, 1), away)
        if more is not None:
            pull = torch.addcmul(pull, away, more[clients].to(pull).repeat_interleave(parts).view(-1, 1, 1))
        twice = _sum(away.mul_(pull)).view(-1, parts, pull.shape[1])
        logits = torch.sub(prior[clients].unsqueeze(2), twice, alpha=0.5 / temperature)
        share = (logits.softmax(1) * scale[clients]).to(pull.dtype)
        torch.sum(pull.view(*share.shape, -1).mul_(share.unsqueeze(3)), 1, out=slopes[clients, some])
        torch.logsumexp(logits, 1, out=values[clients, some])
    return slopes, values.mul_(own).neg_()


def known(mixture: Mixture) -> Tensor:
    """[C] whether a client has any component."""
    return (mixture.weight > 0).any(1)


def _sum(value: Tensor) -> Tensor:
    """Over the last axis: short pieces in their own precision, which costs no copy in double, then these in double."""
    whole = value.shape[-1] // PIECE * PIECE
    rest = value[..., whole:].sum(-1, dtype=torch.float64)
    return rest + value[..., :whole].unflatten(-1, (-1, PIECE)).sum(-1).sum(-1, dtype=torch.float64) if whole else rest


def _portions(count: int, parts: int, models: int, theta: Tensor) -> Iterator[tuple[slice, slice]]:
    """Clients and models to compute together: a component is as large as the model, and each model needs it once.

    What a processor computes together should lie in its cache; a GPU wants large pieces. A portion's size follows from
    shapes and the kind of device, so that no bit depends on how much memory is free.
    """
    clients = max(1, (CACHED if theta.is_cpu else MOST) // (parts * theta.numel()))
    some = max(1, MOST // (parts * theta.shape[1]))
    for first in range(0, count, clients):
        for model in range(0, models, some):
            yield slice(first, first + clients), slice(model, model + some)


def medians(modes: Tensor, weight: Tensor, count: int, lower: bool = False) -> Tensor:
    """Coordinate-wise medians [count, P] over the components [K, L, P] that began at each of `count` initialisations.

    Where nobody here has any from one of them, over all components. Of an even number the median is the mean of the
    middle two, or the lower of them.
    """
    here = weight > 0
    rows = [(modes[:, start::count].flatten(0, 1), here[:, start::count].flatten()) for start in range(count)]
    found = torch.stack([own.sum() for _, own in rows]).tolist()  # once a round the host waits for these
    if not any(found):
        raise ValueError("method.leave, method.join: none of the round's clients is in the federation")
    everything = (modes.flatten(0, 1), here.flatten(), sum(found))
    groups = [(*own, n) if n else everything for own, n in zip(rows, found, strict=True)]
    return torch.stack([_median(*group, lower) for group in groups])


def _median(values: Tensor, here: Tensor, count: int, lower: bool) -> Tensor:
    """Over those `count` rows [N, P] that are here."""
    ordered = torch.where(here.unsqueeze(1), values, torch.inf).sort(0).values
    return ordered[(count - 1) // 2] if lower else (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
