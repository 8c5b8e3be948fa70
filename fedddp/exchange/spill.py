"""Where a cohort's sums wait until the grids are known.

A sum may be rounded only when the largest number of the whole round is known, and each cohort's on its own: to fold two
of them first, or to round one on a grid of its own, would give bits that depend on which cohorts share a rank. So a
rank holds a message for each of its cohorts. Where that is too much for the device they wait on the host or in a file,
like the clients' rows (federation.rows), and a rank's memory does not grow with its cohorts.
"""

import os
import tempfile
from dataclasses import dataclass
from functools import cached_property
from typing import IO, Protocol

import torch
from torch import Tensor

SMALL = 1 << 12  # numbers that are not worth a trip


class Numbers(Protocol):
    """Numbers [n] of which some are read at a time."""

    def __getitem__(self, where: slice, /) -> Tensor: ...


@dataclass(frozen=True)
class Filed:
    """Numbers in a file, from byte `start` on."""

    file: IO[bytes]
    start: int
    dtype: torch.dtype

    def __getitem__(self, where: slice) -> Tensor:
        numbers = torch.empty(where.stop - where.start, dtype=self.dtype)
        os.preadv(self.file.fileno(), [numbers.numpy().data], self.start + where.start * self.dtype.itemsize)
        return numbers


@dataclass
class Spill:
    place: str = "device"  # or host, file

    def __call__(self, part: Tensor) -> Numbers:
        if self.place == "device" or part.numel() < SMALL:
            return part
        if self.place == "host":
            pinned = torch.empty(part.shape, dtype=part.dtype, pin_memory=part.is_cuda)
            return pinned.copy_(part, non_blocking=True) if part.is_cuda else part
        start = self._file.tell()
        self._file.write(part.cpu().contiguous().numpy().data)
        self._file.flush()
        return Filed(self._file, start, part.dtype)

    @cached_property
    def _file(self) -> IO[bytes]:
        """Without a name, so that nothing is left behind; TMPDIR says in which folder."""
        return tempfile.TemporaryFile()
