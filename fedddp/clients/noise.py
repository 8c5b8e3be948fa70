"""Gaussian noise around a mean, each client's from its own key: what a fit draws in every step.

    noise <- z √variance,    theta <- mean + noise,    z ~ N(0, 1)

`normal` draws z from a generator per client. `quantile` is several times faster: z is one of 16,384 equally likely
quantiles of the normal distribution (±4 at most, unit variance), chosen by a hash of the key, the number of the draw
and the parameter's place. It has no state, and its bits do not depend on the machine or the device.
"""

from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from fedddp.core import kernels
from fedddp.core.rng import GOLDEN, mix

NOISES = ("quantile", "normal")
CPU = torch.device("cpu")
STEPS = 4096.0  # of the quantiles' grid in a unit
MASK = 0xFFFFFFFF


@dataclass
class Quantile:
    keys: Tensor  # [C] int64, on the device of what is perturbed
    drawn: int | Tensor = 0  # draws before this one; in a recorded step, a counter on the device, int64 [1]

    def perturb(self, mean: Tensor, variance: Tensor, noise: Tensor, theta: Tensor) -> None:
        """Into the rows [c, P] of noise and theta; c ≤ C."""
        rows, size = mean.shape
        if kernels.suit((mean, variance, noise, theta)):
            table, scale = quantiles(mean.device)
            kernels.call("perturb", rows, size, self.keys, self.drawn, table, scale, mean, variance, noise, theta)
        else:
            z = self.draw(self.keys[:rows], size).to(mean.dtype)
            torch.add(mean, torch.mul(z, root(variance), out=noise), out=theta)

    def draw(self, keys: Tensor, size: int) -> Tensor:
        """z [c, size] of this draw, in float32."""
        word = words(keys, self.drawn, -(-size // 2))
        bits = torch.stack([word, word >> 16], dim=2).flatten(1)[:, :size] & 16383
        table, scale = quantiles(keys.device)
        return table.index_select(0, bits.flatten()).view_as(bits).float() * scale


def words(keys: Tensor, draw: int | Tensor, count: int) -> Tensor:
    """[c, count] random words of 32 bits, held in int64: a hash of the row's key, the draw's number and the place."""
    times = (draw + 1) * GOLDEN
    own = mix(keys + (times if isinstance(times, Tensor) else _wrapped(times)))
    low, high = (own & MASK).unsqueeze(1), ((own >> 32) & MASK).unsqueeze(1)
    return _mix32(_mix32((low + torch.arange(count, device=keys.device)) & MASK) ^ high)


@dataclass
class Normal:
    generators: list[torch.Generator]  # one for each client

    def fill(self, out: Tensor) -> Tensor:
        """Draw z into the first rows of out [c, P], in place; for a device on the host, in one copy."""
        here = out if out.is_cpu else torch.empty(out.shape, dtype=out.dtype)
        for row, generator in zip(here, self.generators, strict=False):
            row.normal_(generator=generator)
        return out if here is out else out.copy_(here)

    def perturb(self, mean: Tensor, variance: Tensor, noise: Tensor, theta: Tensor) -> None:
        torch.add(mean, self.fill(noise).mul_(variance.sqrt()), out=theta)


@cache
def quantiles(device: torch.device = CPU) -> tuple[Tensor, float]:
    """The quantiles of 1/32768, 3/32768, ... on a grid of 16 bits, and what makes their variance 1."""
    upper = torch.special.ndtri(0.5 + (torch.arange(8192, dtype=torch.float64) + 0.5) / 16384)
    grid = (upper * STEPS).round()
    table = torch.cat([-grid.flip(0), grid])
    return table.to(torch.int16).to(device), float(table.square().mean().rsqrt())


def _wrapped(number: int) -> int:
    """As int64 arithmetic leaves it."""
    return (number + 2**63) % 2**64 - 2**63


def root(value: Tensor) -> Tensor:
    """√value, rounded correctly as C does it: torch's own may be off by a bit in float32."""
    return value.double().sqrt().to(value.dtype)


def _mix32(x: Tensor) -> Tensor:
    """A 32-bit hash, held in int64."""
    x = ((x ^ (x >> 16)) * 0x7FEB352D) & MASK
    x = ((x ^ (x >> 15)) * 0x846CA68B) & MASK
    return x ^ (x >> 16)
