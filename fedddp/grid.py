"""Fixed-point grids: floats to int64 and back, a few numbers at a time so that what lies between stays in cache.

    encode   flat  <- Σ_cohorts round(part · 2^bits)          decode   total <- flat · 2^-bits [/ weight]

Scaling by a power of two is exact, so the only roundings are the two that are written: to the grid, and to the total.
"""

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 1 << 16  # numbers that a processor converts at a time


class Segment(NamedTuple):
    """Numbers that share a grid: what this rank's cohorts add, and where the total of all ranks goes."""

    parts: Sequence[Tensor]  # [n] from each cohort
    bits: int  # the grid is 2^-bits
    total: Tensor  # [n] in its own dtype
    weight: Tensor | None = None  # [1] what a mean is divided by; its own segment comes earlier

    def encode(self, flat: Tensor, where: slice) -> None:
        """flat <- this rank's numbers `where`."""
        if not self.parts:
            flat.zero_()
            return
        parts = [part[where] for part in self.parts]
        for chunk in _chunks(flat):
            target = flat[chunk]
            target.copy_(_scaled(parts[0][chunk], self.bits).round_())
            for part in parts[1:]:
                target += _scaled(part[chunk], self.bits).round_().long()

    def decode(self, flat: Tensor, where: slice) -> None:
        """The total's numbers `where` <- flat."""
        total = self.total[where]
        for chunk in _chunks(flat):
            value = flat[chunk].double().mul_(2.0**-self.bits)
            total[chunk] = value if self.weight is None else value.div_(self.weight)


class Piece(NamedTuple):
    """Words of a buffer that travel together, and what lies there."""

    low: int
    high: int
    inside: list[tuple[Segment, slice, slice]]  # a segment, its words of the buffer, and which of its numbers they are

    def encode(self, flat: Tensor) -> None:
        for segment, words, numbers in self.inside:
            segment.encode(flat[words], numbers)

    def decode(self, flat: Tensor) -> None:
        for segment, words, numbers in self.inside:
            segment.decode(flat[words], numbers)


def cut(words: int, step: int, segments: Sequence[Segment]) -> list[Piece]:
    """A buffer that begins with these segments in turn, in pieces of so many words."""
    pieces = [Piece(low, min(low + step, words), []) for low in range(0, words, step)]
    ends = accumulate(len(segment.total) for segment in segments)
    for segment, end in zip(segments, ends, strict=True):
        start = end - len(segment.total)
        for piece in pieces[start // step : -(-end // step)]:
            low, high = max(start, piece.low), min(end, piece.high)
            piece.inside.append((segment, slice(low, high), slice(low - start, high - start)))
    return pieces


def _scaled(value: Tensor, bits: int) -> Tensor:
    """value · 2^bits; float32 is enough while the factor is one, since what underflows rounds to 0 anyway."""
    if value.dtype != torch.float32 or abs(bits) > 126:
        value = value.double()
    return value * 2.0**bits


def _chunks(flat: Tensor) -> Iterator[slice]:
    """A GPU takes everything at once."""
    size = CHUNK if flat.device.type == "cpu" else max(len(flat), 1)
    for start in range(0, len(flat), size):
        yield slice(start, start + size)
