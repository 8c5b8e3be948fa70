"""Sums between ranks of one machine: through memory that all of them see, which is quicker than sockets.

    each rank    writes its own numbers
    barrier      each rank adds up a share of all numbers, over all ranks
    barrier      every rank reads all shares

The memory has no name and goes with its last process, so nothing is left behind by a kill.
"""

import mmap
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from fedddp.rng import key

if TYPE_CHECKING:
    from fedddp.exchange import Exchange

HEAD = 8  # words before a rank's numbers; the first tells whose they are


class Shared:
    """Every rank's numbers [words] and their sum; all ranks open it together, or none."""

    def __init__(self, exchange: "Exchange", numbers: list[Tensor], result: Tensor) -> None:
        self.exchange, self.numbers, self.result = exchange, numbers, result
        self.source = numbers[exchange.rank]
        self.step = len(result)  # all at once: a barrier costs more than what could overlap

    def start(self, low: int, high: int) -> Callable[[], None]:
        """result[low:high] <- the sum of all sources; done when this returns."""
        rank, ranks = self.exchange.rank, self.exchange.world_size
        share = slice(low + (high - low) * rank // ranks, low + (high - low) * (rank + 1) // ranks)
        self.exchange.barrier()  # all have written; and have read what was there before
        total = torch.add(self.numbers[0][share], self.numbers[1][share], out=self.result[share])
        for other in self.numbers[2:]:
            total += other[share]
        self.exchange.barrier()  # all have added
        return lambda: None


def open_shared(exchange: "Exchange", words: int) -> Shared | None:
    """Memory for sums of so many words; None on every rank if some ranks cannot see each other's memory."""
    token = exchange.agree([key("shared", os.getpid(), os.urandom(8).hex()) if exchange.rank == 0 else 0])[0]
    size = HEAD + words * (2 if exchange.rank == 0 else 1)  # the first holds the sum too
    file = _create(8 * size)
    if file is not None:
        _map(file)[0] = token ^ exchange.rank
    places = exchange.gather([os.getpid(), -1 if file is None else file])
    tables = [_open(pid, number, token ^ rank) for rank, (pid, number) in enumerate(places)]
    missing = exchange.agree([int(any(table is None for table in tables))])[0]
    if file is not None:
        os.close(file)  # the mappings stay
    if missing:
        return None
    parts = [table[HEAD:] for table in tables if table is not None]
    return Shared(exchange, [part[:words] for part in parts], parts[0][words:])


def _create(size: int) -> int | None:
    """A file in memory whose pages are there: memory that ran out later would end the process."""
    if not hasattr(os, "memfd_create"):
        return None
    file = os.memfd_create("fedddp")
    try:
        os.posix_fallocate(file, 0, size)
    except OSError:
        os.close(file)
        return None
    return file


def _open(pid: int, number: int, token: int) -> Tensor | None:
    """Another rank's memory, if that process is on this machine and lets us."""
    try:
        file = os.open(Path("/proc", str(pid), "fd", str(number)), os.O_RDWR)
    except OSError:
        return None
    try:
        table = _map(file) if os.fstat(file).st_size >= 8 * HEAD else None
    except (OSError, ValueError):
        return None
    finally:
        os.close(file)
    return table if table is not None and int(table[0]) == token else None


def _map(file: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(file, 0), dtype=torch.int64)
