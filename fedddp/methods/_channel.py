"""What may become of a client's message on its way: Gaussian noise, rounding to a grid, fewer eigenpairs.

The noise is that of "Hessian-weighted aggregation (HWA)", section 5, Fig. 11.
"""

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.clients.kron import Block, Kron
from fedddp.core.params import Layout


def perturb(value: Tensor, deviation: float, cohort: Cohort, purpose: str) -> Tensor:
    """value [C, ...] with noise of each client's own stream; `purpose` keeps the fields of a message independent."""
    if not deviation:
        return value
    return value + deviation * cohort.noise(f"{purpose} perturbation").fill(torch.empty_like(value))


def quantise(value: Tensor, bits: int) -> Tensor:
    """Each row of value [C, ...] on 2^bits - 1 even levels between minus and plus its largest entry; 0 bits: as is."""
    if not bits:
        return value
    flat = value.flatten(1)
    step = flat.abs().amax(1, keepdim=True) / (2 ** (bits - 1) - 1)
    step = torch.where(step > 0, step, 1)
    return ((flat / step).round() * step).view_as(value)


def quantise_layers(theta: Tensor, layout: Layout, bits: int) -> Tensor:
    """Every parameter of theta [C, P] on a grid of its own."""
    return torch.cat([quantise(part, bits) for part in theta.split(layout.sizes, dim=1)], 1)


def compress_factors(curvature: Kron, bits: int, rank: int) -> Kron:
    """Each Kronecker factor by its `rank` leading eigenpairs, quantised; it stays positive semi-definite."""
    return Kron(tuple(Block(*(_compress(factor, bits, rank) for factor in block)) for block in curvature.blocks))


def _compress(factor: Tensor, bits: int, rank: int) -> Tensor:
    if not rank or rank >= factor.shape[1]:
        return quantise(factor, bits)
    values, vectors = torch.linalg.eigh(factor.double())
    values, vectors = (quantise(part[..., -rank:].contiguous(), bits) for part in (values.clamp_min(0), vectors))
    return ((vectors * values.unsqueeze(1)) @ vectors.mT).to(factor.dtype)


def factor_numbers(layout: Layout, rank: int) -> int:
    """How many numbers the compressed factors of one client are."""
    sides = [
        side for shape, size in zip(layout.shapes, layout.sizes, strict=True) for side in (shape[0], size // shape[0])
    ]
    return sum(side**2 if not rank or rank >= side else rank * (side + 1) for side in sides)
