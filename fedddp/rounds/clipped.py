"""Clipped changes on a grid, and exact integers as noise on their sum: g = 2^-b, noise g X with X on the integers.

A client moves the sum by at most C/g + √n/2 grid steps (the second is the rounding of n numbers), so the scale of X is
noise (C/g + √n/2), rounded up, and b such that it has 23 bits. Multiples of g are exact in float64, and so is the sum.
"""

from dataclasses import dataclass
from math import ceil, floor, log2, sqrt

import torch
from torch import Tensor

from fedddp.exchange.discrete import LARGEST, Bits, discrete_gaussian

SMALLEST_SHARE = 1000  # scale of a client's share of the noise


@dataclass(frozen=True)
class Grid:
    """Of one field: sums are multiples of 2^-bits, and noise has this scale in units of it."""

    clip: float
    size: int  # numbers of a client
    bits: int
    scale: int

    @classmethod
    def of(cls, clip: float, noise: float, size: int) -> "Grid":
        """`noise` in units of the clip, `size` numbers."""
        bits = floor(log2(LARGEST / 2)) - ceil(log2(noise * clip))
        while True:
            scale = ceil(noise * (clip * 2.0**bits + sqrt(size) / 2 + 1))
            if scale <= LARGEST:
                return cls(clip, size, bits, scale)
            bits -= 1

    def round(self, change: Tensor) -> Tensor:
        """Rows [C, n], shortened to the clip and on the grid, in float64."""
        value = change.double()
        norm = value.norm(dim=1, keepdim=True)
        fine = norm <= self.clip  # false of what is not finite, which stays so
        return torch.where(fine, value, value * (self.clip / norm)).mul_(2.0**self.bits).round_().mul_(2.0**-self.bits)

    def draw(self, count: int, key: bytes, scale: int) -> Tensor:
        """[count] of the noise."""
        return torch.from_numpy(discrete_gaussian(scale, count, Bits(key))).double().mul_(2.0**-self.bits)


def share(scale: int, clients: float) -> int:
    """The scale of each client's share of the noise."""
    own = ceil(scale / sqrt(clients))
    if own < SMALLEST_SHARE:
        raise ValueError(f"privacy with exchange.secure: {clients} clients are too many for shares of the noise")
    return own
