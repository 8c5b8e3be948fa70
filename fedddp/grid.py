"""Fixed-point grids: floats to int64 and back, a few numbers at a time so that what lies between stays in cache.

    encode   flat  <- Σ_cohorts round(part · 2^bits)          decode   total <- flat · 2^-bits / weight

Scaling by a power of two is exact, so the only roundings are the two that are written: to the grid, and to the total.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from fedddp import kernels

CHUNK = 1 << 18  # numbers that a processor converts at a time


class Segment(NamedTuple):
    """Numbers that share a grid: what this rank's cohorts add, and where the total of all ranks goes."""

    parts: Sequence[Tensor]  # [n] from each cohort
    bits: int  # the grid is 2^-bits
    total: Tensor  # [n] in its own dtype
    weight: Tensor  # [1] in float64, what a mean is divided by: the total of an earlier segment; 1 for a sum

    def encode(self, flat: Tensor, at: int, low: int, high: int) -> None:
        """flat, from word `at` on, <- this rank's numbers [low:high]."""
        for words, numbers in _chunks(flat, at, low, high):
            for number, part in enumerate(self.parts):
                _to_grid(part[numbers], self.bits, flat[words], adds=number > 0)
            if not self.parts:
                flat[words] = 0

    def decode(self, flat: Tensor, at: int, low: int, high: int) -> None:
        """The total's numbers [low:high] <- flat, from word `at` on."""
        for words, numbers in _chunks(flat, at, low, high):
            _from_grid(flat[words], self.bits, self.weight, self.total[numbers])


class Piece(NamedTuple):
    """Words of a buffer that travel together, and what lies there."""

    low: int
    high: int
    inside: list[tuple[Segment, int, int, int]]  # a segment, where it goes on here, and which of its numbers

    def encode(self, flat: Tensor) -> None:
        for segment, at, low, high in self.inside:
            segment.encode(flat, at, low, high)

    def decode(self, flat: Tensor) -> None:
        for segment, at, low, high in self.inside:
            segment.decode(flat, at, low, high)


def cut(words: int, step: int, segments: Sequence[Segment]) -> list[Piece]:
    """A buffer that begins with these segments in turn, in pieces of so many words."""
    pieces = [Piece(low, min(low + step, words), []) for low in range(0, words, step)]
    ends = accumulate(segment.total.numel() for segment in segments)
    for segment, end in zip(segments, ends, strict=True):
        start = end - segment.total.numel()
        for piece in pieces[start // step : -(-end // step)]:
            at, stop = max(start, piece.low), min(end, piece.high)
            piece.inside.append((segment, at, at - start, stop - start))
    return pieces


def _to_grid(part: Tensor, bits: int, flat: Tensor, adds: bool) -> None:
    """flat <- [flat +] round(part · 2^bits).

    A factor that is a float32 may be applied as one: nothing overflows, and what underflows rounds to 0 anyway.
    """
    plain = abs(bits) <= 126
    if plain and kernels.suit([part]):
        kernels.call("to_grid", part.numel(), part, 2.0**bits, int(adds), flat)
        return
    value = part if plain and part.dtype == torch.float32 else part.double()
    value = (value * 2.0**bits).round_()
    if adds:
        flat += value.long()
    else:
        flat.copy_(value)


def _from_grid(flat: Tensor, bits: int, weight: Tensor, total: Tensor) -> None:
    """total <- flat · 2^-bits / weight."""
    if kernels.suit([total]):
        kernels.call("from_grid", flat.numel(), flat, bits, weight, total)
    else:
        total.copy_(flat.double().mul_(2.0**-bits).div_(weight))


def _chunks(flat: Tensor, at: int, low: int, high: int) -> Iterator[tuple[slice, slice]]:
    """Words of the buffer and the numbers of a segment that they are; a GPU takes everything at once."""
    size = CHUNK if flat.device.type == "cpu" else max(high - low, 1)
    for start in range(low, high, size):
        stop = min(start + size, high)
        yield slice(at + start - low, at + stop - low), slice(start, stop)
