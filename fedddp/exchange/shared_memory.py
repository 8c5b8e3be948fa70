"""Sums between ranks of one machine: through memory that all of them see, which is quicker than sockets.

    each rank    writes its own numbers
    all meet     each rank adds up a share of all numbers, over all ranks
    all meet     every rank reads all shares

The memory has no name and goes with its last process, so nothing is left behind by a kill.
"""

import mmap
import os
import platform
import select
import sys
import time
from collections.abc import Callable
from typing import IO, TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fedddp.core.rng import key
from fedddp.exchange.watch import Absent

if TYPE_CHECKING:
    from fedddp.exchange.group import Exchange

HEAD = 8  # words before a rank's numbers: whose they are, and how often that rank has arrived
PATIENCE = 1000  # looks at the others before a rank sleeps between them


class Shared:
    """Every rank's numbers [words] and their sum; all ranks open it together, or none."""

    def __init__(self, exchange: "Exchange", others: "list[Other]", words: int) -> None:
        self.exchange, self.rank, self.others = exchange, exchange.rank, others
        self.heads = [memoryview(other.table[:HEAD].numpy().data) for other in others]
        self.numbers = [other.table[HEAD : HEAD + words] for other in others]
        self.source = self.numbers[self.rank].unsqueeze(0)
        self.result = others[0].table[HEAD + words :].unsqueeze(0)
        self.ended = select.poll()
        self.lives = {other.life.fileno(): rank for rank, other in enumerate(others)}
        for life in self.lives:
            self.ended.register(life, select.POLLIN)

    def start(self, slot: int, words: int) -> Callable[[], None]:
        """The first words of the result <- the sum of all sources; done when this returns."""
        ranks = len(self.numbers)
        share = slice(words * self.rank // ranks, words * (self.rank + 1) // ranks)
        self.exchange.call(self._meet)  # all have written, and have read what was there before
        total = torch.add(self.numbers[0][share], self.numbers[1][share], out=self.result[slot, share])
        for other in self.numbers[2:]:
            total += other[share]
        self.exchange.call(self._meet)  # all have added
        return lambda: None

    def most(self, numbers: Tensor) -> Tensor:
        """The elementwise maximum over ranks."""
        self.source[0, : len(numbers)] = numbers
        self._meet()  # all have written
        found = torch.stack([other[: len(numbers)] for other in self.numbers]).amax(0)
        self._meet()  # all have read
        return found

    def _meet(self) -> None:
        """Go on when every rank is here. They come at about the same time: to look is quicker than to sleep."""
        turn = self.heads[self.rank][1] + 1
        self.heads[self.rank][1] = turn
        looks = 0
        for head in self.heads:
            while head[1] < turn:
                looks += 1
                if looks > PATIENCE:
                    return self._wait(turn)
                os.sched_yield()
        return None

    def _wait(self, turn: int) -> None:
        """The same, asleep between looks, and not for ever: Absent names the ranks that do not come."""
        waited, before = 0.0, time.monotonic()
        while behind := [rank for rank, head in enumerate(self.heads) if head[1] < turn]:
            ended = [self.lives[life] for life, _ in self.ended.poll(1)]  # a thousandth of a second
            if ended and any(self.heads[rank][1] < turn for rank in behind):
                raise Absent(sorted(ended), "ended")
            now = time.monotonic()
            waited += min(now - before, 1.0)  # while we were stopped ourselves (Ctrl-Z), nobody kept us waiting
            before = now
            if waited > self.exchange.timeout:
                raise Absent(behind, "behind")


class Other(NamedTuple):
    """What a rank has of another one (or of itself)."""

    table: Tensor
    life: IO[bytes]  # can be read when the process has ended


def open_shared(exchange: "Exchange", words: int) -> Shared | None:
    """Memory for sums of up to so many words; None on every rank if some rank cannot see another's memory."""
    token = exchange.agree([key("shared", os.getpid(), os.urandom(8).hex()) if exchange.rank == 0 else 0])[0]
    size = HEAD + words * (2 if exchange.rank == 0 else 1)  # the first holds the sum too
    file = _create(8 * size)
    if file is not None:
        _map(file)[0] = token ^ exchange.rank
    places = exchange.gather([os.getpid(), -1 if file is None else file])
    found = [_open(pid, number, token ^ rank) for rank, (pid, number) in enumerate(places)]
    others = [other for other in found if other is not None]
    missing = exchange.agree([len(found) - len(others)])[0]
    if file is not None:
        os.close(file)  # the mappings stay
    return None if missing else Shared(exchange, others, words)


def _create(size: int) -> int | None:
    """A file in memory whose pages are there: memory that ran out later would end the process.

    Only for processors that let others see what is written in the order it was written: a rank's arrival comes last.
    """
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        return None
    file = os.memfd_create("fedddp")
    try:
        os.posix_fallocate(file, 0, size)
    except OSError:
        os.close(file)
        return None
    return file


def _open(pid: int, number: int, token: int) -> Other | None:
    """A rank's memory, if that process is on this machine and lets us; another's file would not have the token."""
    try:
        with open(f"/proc/{pid}/fd/{number}", "rb+") as file:
            table = _map(file.fileno())
        other = Other(table, os.fdopen(os.pidfd_open(pid), "rb"))
    except (OSError, ValueError):
        return None
    return other if int(table[0]) == token else None


def _map(file: int) -> Tensor:
    return torch.frombuffer(mmap.mmap(file, 0), dtype=torch.int64)
