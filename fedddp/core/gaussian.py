"""Gaussians as one tensor of natural parameters, so that densities multiply by adding tensors.

Products, cavities, damping, duals and consensus are then plain `+`, `-` and `*`, a stack of clients is a
leading axis, and aggregation is a sum. Three families share one set of functions:

    isotropic  lam[..., P + 1]     = (s·m, s)         one precision s for all coordinates
    diagonal   lam[..., 2, P]      = (s·m, s)         a precision for each coordinate
    full       lam[..., P + 1, P]  = (S m, S)         a precision matrix

A factor need not be a proper density: `linear` has no precision at all, and a dual may have a negative one.
"""

from typing import ClassVar, Protocol

import torch
from torch import Tensor


class Family(Protocol):
    name: ClassVar[str]

    def natural(self, mean: Tensor, precision: Tensor | float) -> Tensor:
        """lam of N(mean, precision⁻¹)."""

    def linear(self, slope: Tensor) -> Tensor:
        """The factor whose energy is <slope, theta>: no precision."""

    def shift(self, lam: Tensor) -> Tensor:
        """precision x mean, [..., P]."""

    def precision(self, lam: Tensor) -> Tensor:
        """[..., 1], [..., P] or [..., P, P]."""

    def mean(self, lam: Tensor) -> Tensor:
        """[..., P]."""

    def energy_grad(self, lam: Tensor, theta: Tensor) -> Tensor:
        """Gradient of -log N(theta; lam); also for improper factors."""

    def sample(self, lam: Tensor, noise: Tensor) -> Tensor:
        """theta ~ N(lam) from standard normal noise [..., P]."""

    def expectation(self, lam: Tensor) -> Tensor:
        """mu = E[T(theta)], T = (theta, -½ theta²), in the layout of lam."""

    def improper(self, lam: Tensor) -> Tensor:
        """How many directions have no positive precision, [...]."""

    def floored(self, lam: Tensor, least: float) -> Tensor:
        """With no precision below `least`: the nearest one that has none, and precision x mean as it is."""


class Diagonal:
    name: ClassVar[str] = "diagonal"

    def natural(self, mean: Tensor, precision: Tensor | float) -> Tensor:
        precision = torch.as_tensor(precision, dtype=mean.dtype, device=mean.device).expand_as(mean)
        return torch.stack([precision * mean, precision], dim=-2)

    def linear(self, slope: Tensor) -> Tensor:
        return torch.stack([-slope, torch.zeros_like(slope)], dim=-2)

    def shift(self, lam: Tensor) -> Tensor:
        return lam[..., 0, :]

    def precision(self, lam: Tensor) -> Tensor:
        return lam[..., 1, :]

    def mean(self, lam: Tensor) -> Tensor:
        return lam[..., 0, :] / lam[..., 1, :]

    def energy_grad(self, lam: Tensor, theta: Tensor) -> Tensor:
        return lam[..., 1, :] * theta - lam[..., 0, :]

    def sample(self, lam: Tensor, noise: Tensor) -> Tensor:
        return self.mean(lam) + noise * self.precision(lam).rsqrt()

    def expectation(self, lam: Tensor) -> Tensor:
        mean = self.mean(lam)
        return torch.stack([mean, -0.5 * (mean.square() + 1 / self.precision(lam))], dim=-2)

    def improper(self, lam: Tensor) -> Tensor:
        return (~(self.precision(lam) > 0)).sum(-1)

    def floored(self, lam: Tensor, least: float) -> Tensor:
        return torch.stack([self.shift(lam), self.precision(lam).clamp_min(least)], dim=-2)


class Isotropic:
    name: ClassVar[str] = "isotropic"

    def natural(self, mean: Tensor, precision: Tensor | float) -> Tensor:
        precision = torch.as_tensor(precision, dtype=mean.dtype, device=mean.device)
        precision = precision.expand(*mean.shape[:-1], 1)
        return torch.cat([precision * mean, precision], dim=-1)

    def linear(self, slope: Tensor) -> Tensor:
        return torch.cat([-slope, slope.new_zeros(*slope.shape[:-1], 1)], dim=-1)

    def shift(self, lam: Tensor) -> Tensor:
        return lam[..., :-1]

    def precision(self, lam: Tensor) -> Tensor:
        return lam[..., -1:]

    def mean(self, lam: Tensor) -> Tensor:
        return lam[..., :-1] / lam[..., -1:]

    def energy_grad(self, lam: Tensor, theta: Tensor) -> Tensor:
        return lam[..., -1:] * theta - lam[..., :-1]

    def sample(self, lam: Tensor, noise: Tensor) -> Tensor:
        return self.mean(lam) + noise * self.precision(lam).rsqrt()

    def expectation(self, lam: Tensor) -> Tensor:
        mean = self.mean(lam)
        second = mean.square().sum(-1, keepdim=True) + mean.shape[-1] / self.precision(lam)
        return torch.cat([mean, -0.5 * second], dim=-1)

    def improper(self, lam: Tensor) -> Tensor:
        return (~(self.precision(lam) > 0)).sum(-1)

    def floored(self, lam: Tensor, least: float) -> Tensor:
        return torch.cat([self.shift(lam), self.precision(lam).clamp_min(least)], dim=-1)


class Full:
    name: ClassVar[str] = "full"

    def natural(self, mean: Tensor, precision: Tensor | float) -> Tensor:
        if not isinstance(precision, Tensor):
            precision = precision * torch.eye(mean.shape[-1], dtype=mean.dtype, device=mean.device)
        precision = precision.expand(*mean.shape, mean.shape[-1])
        shift = (precision @ mean.unsqueeze(-1)).mT
        return torch.cat([shift, precision], dim=-2)

    def linear(self, slope: Tensor) -> Tensor:
        nothing = slope.new_zeros(*slope.shape, slope.shape[-1])
        return torch.cat([-slope.unsqueeze(-2), nothing], dim=-2)

    def shift(self, lam: Tensor) -> Tensor:
        return lam[..., 0, :]

    def precision(self, lam: Tensor) -> Tensor:
        return lam[..., 1:, :]

    def mean(self, lam: Tensor) -> Tensor:
        return torch.linalg.solve(self.precision(lam), self.shift(lam).unsqueeze(-1)).squeeze(-1)

    def energy_grad(self, lam: Tensor, theta: Tensor) -> Tensor:
        return (self.precision(lam) @ theta.unsqueeze(-1)).squeeze(-1) - self.shift(lam)

    def sample(self, lam: Tensor, noise: Tensor) -> Tensor:
        factor = torch.linalg.cholesky(self.precision(lam))  # S = L Lᵀ, so L⁻ᵀ z has covariance S⁻¹
        return self.mean(lam) + torch.linalg.solve_triangular(factor.mT, noise.unsqueeze(-1), upper=True).squeeze(-1)

    def expectation(self, lam: Tensor) -> Tensor:
        mean = self.mean(lam).unsqueeze(-2)
        second = mean.mT @ mean + torch.linalg.inv(self.precision(lam))
        return torch.cat([mean, -0.5 * second], dim=-2)

    def improper(self, lam: Tensor) -> Tensor:
        return (~(torch.linalg.eigvalsh(self.precision(lam)) > 0)).sum(-1)

    def floored(self, lam: Tensor, least: float) -> Tensor:
        precision = self.precision(lam)
        values, vectors = torch.linalg.eigh((precision + precision.mT) / 2)
        precision = vectors @ (values.clamp_min(least).unsqueeze(-1) * vectors.mT)
        return torch.cat([lam[..., :1, :], precision], dim=-2)


diagonal, isotropic, full = Diagonal(), Isotropic(), Full()
FAMILIES: dict[str, Family] = {family.name: family for family in (isotropic, diagonal, full)}


def family_of(lam: Tensor) -> Family:
    """The family whose layout an unstacked lam has; for one parameter, diagonal and full are the same."""
    if lam.dim() == 1:
        return isotropic
    return diagonal if lam.shape[0] == 2 else full


def towards(lam: Tensor, other: Tensor, share: float) -> Tensor:
    """The Gaussian a `share` of the way from one to another: a line in natural parameters.

    q = argmin (1 - share) KL(q || N(lam)) + share KL(q || N(other)), for any family. Where `other` is `lam` times a
    likelihood, as a client's posterior is, it is `lam` times that likelihood to the power `share`.
    """
    return torch.lerp(lam.expand_as(other), other, share)


def as_diagonal(lam: Tensor) -> Tensor:
    """An isotropic factor with its precision written out for each coordinate."""
    shift = isotropic.shift(lam)
    return torch.stack([shift, isotropic.precision(lam).expand_as(shift)], dim=-2)


def inverse(family: Family, matrix: Tensor) -> Tensor:
    """The covariance of a family's precision, or the precision of its covariance."""
    return torch.linalg.inv(matrix) if family is full else 1 / matrix
