"""Fixed-point grids: floats to int64 and back, a few numbers at a time so that what lies between stays in cache.

    encode   flat  <- Σ_cohorts round(part · 2^bits)          decode   total <- flat · 2^-bits / weight

Scaling by a power of two is exact, so the only roundings are the two that are written: to the grid, and to the total.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from fedddp.core import kernels
from fedddp.exchange.group import Transport
from fedddp.exchange.masks import Hide, unmasked
from fedddp.exchange.spill import Numbers

CHUNK = 1 << 18  # numbers that a processor converts at a time


@dataclass(frozen=True)
class Segment:
    """Numbers that share a grid: what this rank's cohorts add, and where the total of all ranks goes."""

    parts: Sequence[Numbers]  # [n] from each cohort
    bits: int  # the grid is 2^-bits
    total: Tensor  # [n] in its own dtype
    weight: Tensor  # [1] in float64, what a mean is divided by: the total of an earlier segment; 1 for a sum

    def __len__(self) -> int:
        return self.total.numel()

    def encode(self, flat: Tensor, at: int, low: int, high: int) -> None:
        """flat, from word `at` on, <- this rank's numbers [low:high]."""
        for words, numbers in _chunks(flat, at, low, high):
            for number, part in enumerate(self.parts):
                value = part[numbers].to(flat.device, non_blocking=True)
                _to_grid(value, self.bits, flat[words], adds=number > 0)
            if not self.parts:
                flat[words] = 0

    def decode(self, flat: Tensor, at: int, low: int, high: int) -> None:
        """The total's numbers [low:high] <- flat, from word `at` on."""
        for words, numbers in _chunks(flat, at, low, high):
            there = flat[words].to(self.total.device, non_blocking=True)
            _from_grid(there, self.bits, self.weight, self.total[numbers])


@dataclass(frozen=True)
class Table:
    """Words that are added up as they are: rows of one rank each, zeros elsewhere."""

    words: Tensor  # [slots, words of a row] int64, this rank's; becomes the total

    def __len__(self) -> int:
        return self.words.numel()

    def encode(self, flat: Tensor, at: int, low: int, high: int) -> None:
        flat[at : at + high - low] = self.words.view(-1)[low:high]

    def decode(self, flat: Tensor, at: int, low: int, high: int) -> None:
        self.words.view(-1)[low:high] = flat[at : at + high - low]


class Piece(NamedTuple):
    """Words that travel together, and what they are."""

    words: int
    inside: list[tuple[Segment | Table, int, int, int]]  # at which word, and which of the segment's numbers, lie here

    def encode(self, flat: Tensor) -> None:
        for segment, at, low, high in self.inside:
            segment.encode(flat, at, low, high)

    def decode(self, flat: Tensor) -> None:
        for segment, at, low, high in self.inside:
            segment.decode(flat, at, low, high)


def cut(segments: Sequence[Segment | Table], size: int) -> list[Piece]:
    """One segment after the other, in pieces of so many words."""
    ends = list(accumulate(len(segment) for segment in segments))
    words = ends[-1] if ends else 0
    pieces = [Piece(min(size, words - low), []) for low in range(0, words, size)]
    for segment, end in zip(segments, ends, strict=True):
        start = end - len(segment)
        for number in range(start // size, -(-end // size)):
            low, high = max(start, number * size), min(end, (number + 1) * size)
            pieces[number].inside.append((segment, low - number * size, low - start, high - start))
    return pieces


def all_reduce(transport: Transport, segments: Sequence[Segment | Table], hide: Hide = unmasked) -> None:
    """Add up over ranks, in pieces: while some are on their way, a later one is encoded or an earlier one decoded.

    `hide` writes a piece's words, masked, to where other ranks can see them; its order is that of the pieces.
    """
    slots, size = transport.source.shape
    moving: deque[Callable[[], None]] = deque()

    def send(piece: Piece, slot: int) -> Callable[[], None]:
        if hide is unmasked:
            piece.encode(transport.source[slot])
        else:  # the transport's memory may be seen by others
            own = torch.empty_like(transport.source[slot, : piece.words])
            piece.encode(own)
            hide(own, transport.source[slot, : piece.words])
        arrive = transport.start(slot, piece.words)

        def finish() -> None:
            arrive()
            piece.decode(transport.result[slot])

        return finish

    for number, piece in enumerate(cut(segments, size)):
        if len(moving) == slots:
            moving.popleft()()
        moving.append(send(piece, number % slots))
    for finish in moving:
        finish()


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
