"""Sums between ranks of one machine: through memory that all of them see, which is quicker than sockets.

    each rank    writes its own numbers
    all meet     each rank adds up a share of all numbers, over all ranks of the machine
    all meet     the first rank of each machine adds this sum to those of the others, over the network
    all meet     every rank reads the whole sum

So between two machines a sum crosses once in each direction, however many ranks they have; on a single one the third
line and the last meeting fall away. The memory has no name and goes with its last process, so nothing is left behind by
a kill.
"""

import mmap
import os
import platform
import select
import sys
import time
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from fedddp.core.rng import key
from fedddp.exchange.watch import Absent

if TYPE_CHECKING:
    from fedddp.exchange.group import Exchange

HEAD = 8  # words before a rank's numbers: whose they are, and how often that rank has arrived
PATIENCE = 1000  # looks at the others before a rank sleeps between them


Across = Callable[[Tensor, str], Callable[[], object]]  # adds up ("sum") or compares ("max") between machines, in place


class Shared:
    """The numbers [slots, words] of every rank of a machine and their sum; all ranks open it together, or none."""

    def __init__(self, exchange: "Exchange", others: "Mapping[int, Other]", words: int, across: Across | None) -> None:
        """`others` are the ranks of this machine, with this one; `across` is None where there is no other machine."""
        self.exchange, self.ranks, self.across = exchange, sorted(others), across
        self.others = others  # their lives stay open
        self.place = self.ranks.index(exchange.rank)
        tables = [others[rank].table for rank in self.ranks]
        self.heads = [memoryview(table[:HEAD].numpy().data) for table in tables]
        shape = slots(across is not None), words
        self.numbers = [table[HEAD : HEAD + shape[0] * words].view(shape) for table in tables]
        self.source = self.numbers[self.place]
        self.result = tables[0][HEAD + shape[0] * words :].view(shape)
        self.ended = select.poll()
        self.lives = {other.life.fileno(): rank for rank, other in others.items()}
        for life in self.lives:
            self.ended.register(life, select.POLLIN)

    def start(self, slot: int, words: int) -> Callable[[], None]:
        """The first words of the slot's result <- the sum of all sources."""
        ranks = len(self.numbers)
        share = slice(words * self.place // ranks, words * (self.place + 1) // ranks)
        self.exchange.call(self._meet)  # all have written, and have read what was there before
        total = self.result[slot, share].copy_(self.numbers[0][slot, share])
        for other in self.numbers[1:]:
            total += other[slot, share]
        if self.across is None:
            self.exchange.call(self._meet)  # all have added
            return lambda: None
        arrive = self.exchange.call(self._begin, self.result[slot, :words], "sum")
        return lambda: self.exchange.call(self._end, arrive)

    def most(self, numbers: Tensor) -> Tensor:
        """The elementwise maximum over ranks."""
        self.source[0, : len(numbers)] = numbers
        self._meet()  # all have written
        found = torch.stack([other[0, : len(numbers)] for other in self.numbers]).amax(0)
        if self.across is None:
            self._meet()  # all have read
            return found
        result = self.result[0, : len(numbers)]
        if self.place == 0:
            result.copy_(found)
        self._end(self._begin(result, "max"))
        return result.clone()  # the next meeting comes before the next writing

    def _begin(self, result: Tensor, how: str) -> Callable[[], object]:
        """Send what this machine has found on its way to the others. One call for every rank: calls are compared."""
        self._meet()  # all have added, and read
        return self.across(result, how) if self.across is not None and self.place == 0 else lambda: None

    def _end(self, arrive: Callable[[], object]) -> None:
        arrive()
        self._meet()  # it is there

    def _meet(self) -> None:
        """Go on when every rank is here. They come at about the same time: to look is quicker than to sleep."""
        turn = self.heads[self.place][1] + 1
        self.heads[self.place][1] = turn
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
        while behind := [place for place, head in enumerate(self.heads) if head[1] < turn]:
            ended = [self.lives[life] for life, _ in self.ended.poll(1)]  # a thousandth of a second
            if ended and any(self.heads[place][1] < turn for place in behind):
                raise Absent(sorted(ended), "ended")
            if (watch := self.exchange.watch) is not None and watch.told.lost:  # by a rank of another machine
                raise Absent(watch.told.lost, watch.told.how)
            now = time.monotonic()
            waited += min(now - before, 1.0)  # while we were stopped ourselves (Ctrl-Z), nobody kept us waiting
            before = now
            if waited > self.exchange.timeout:
                raise Absent([self.ranks[place] for place in behind], "behind")


class Other(NamedTuple):
    """What a rank has of another one (or of itself)."""

    table: Tensor
    life: IO[bytes]  # can be read when the process has ended


def slots(several: bool) -> int:
    """Pieces of a long sum at once: with several machines one is added here while another is on its way."""
    return 2 if several else 1


def open_shared(exchange: "Exchange", words: int) -> Shared | None:
    """Memory for sums of up to so many words at a time; None on every rank if no rank can see another's memory, or
    if it is not clear who is with whom."""
    token = exchange.agree([key("shared", os.getpid(), os.urandom(8).hex()) if exchange.rank == 0 else 0])[0]
    file = _create(8 * HEAD)
    if file is not None:
        _map(file)[0] = token ^ exchange.rank
    places = exchange.gather([os.getpid(), -1 if file is None else file])
    found = {rank for rank, (pid, number) in enumerate(places) if _open(pid, number, token ^ rank) is not None}
    machines = [first for (first,) in exchange.gather([min(found, default=exchange.rank)])]
    mine = {rank for rank, first in enumerate(machines) if first == machines[exchange.rank]}
    firsts, strange = sorted(set(machines)), exchange.agree([int(found != mine)])[0]
    if file is not None:
        os.close(file)
    if strange or len(firsts) == exchange.world_size:
        return None
    return _open_machine(exchange, token, sorted(mine), firsts, words)


def _open_machine(exchange: "Exchange", token: int, mine: list[int], firsts: list[int], words: int) -> Shared | None:
    """The ranks `mine` share memory, of which the first one's holds the sum, too; `firsts`: one of each machine."""
    count = slots(len(firsts) > 1)
    file = _create(8 * (HEAD + count * words * (2 if exchange.rank == mine[0] else 1)))
    if file is not None:
        _map(file)[0] = token ^ exchange.rank
    places = exchange.gather([os.getpid(), -1 if file is None else file])
    found = {rank: _open(pid, number, token ^ rank) for rank, (pid, number) in enumerate(places) if rank in mine}
    others = {rank: other for rank, other in found.items() if other is not None}
    missing = exchange.agree([len(mine) - len(others)])[0]
    if file is not None:
        os.close(file)  # the mappings stay
    if missing:
        return None
    return Shared(exchange, others, words, exchange.among(firsts) if len(firsts) > 1 else None)


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
