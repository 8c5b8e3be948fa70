"""Where a cohort's batches come from: data.place. A run has the same bits with each.

device    a device holds the examples of the clients at home on it; a cohort from elsewhere (methods without client
          memory are computed anywhere) brings its own along, in one copy before its first step
host      they stay in the host's memory, and each batch is copied, the next one while this one is computed
"""

from collections.abc import Sequence
from math import prod
from typing import Protocol

import torch
from torch import Tensor

from fedddp.clients.schedule import Schedule
from fedddp.core.data import Examples
from fedddp.core.task import Task

ALIGNED = 16  # bytes: where a tensor of any type may begin


class Feed(Protocol):
    def __call__(self, step: int, rows: int) -> tuple[Tensor, Tensor]:
        """Model inputs and targets [rows, B, ...] of that step, for the first rows; steps are asked for in order."""


def feed(task: Task, schedule: Schedule) -> Feed:
    """Of a schedule's batches, of which so many rows are asked for as are at work."""
    if _streamed(task):
        return Streamed(task, schedule.table, schedule.working)
    return Resident(task, schedule.source, schedule.table)


def located(task: Task, index: Tensor) -> tuple[Examples, Tensor]:
    """Where batches of the training examples `index` [n] are taken from, and where in there these lie, on the same."""
    if _streamed(task):
        return task.data.train, index
    source, rows = task.data.near(index, task.device)
    return source, send(rows, task.device)


def send(table: Tensor, device: torch.device) -> Tensor:
    """To the device once for all steps: a copy in every step would let it wait for the host."""
    return (table.pin_memory() if device.type == "cuda" and table.is_cpu else table).to(device, non_blocking=True)


def _streamed(task: Task) -> bool:
    return task.data.streamed and task.device.type != "cpu"


class Resident:
    """Batches from the memory of the device."""

    def __init__(self, task: Task, source: Examples, index: Tensor) -> None:
        self.task, self.source, self.index = task, source, index
        self.space: Tensor | None = None  # of the most rows

    def __call__(self, step: int, rows: int) -> tuple[Tensor, Tensor]:
        index = self.index[step, :rows]
        inputs, targets = self.task.data.gather(index, self.task.dtype, self.space, self.source)
        self.space = inputs if self.space is None else self.space
        return inputs, targets


class Streamed:
    """Batches from the host: stored inputs and targets in one copy, a step ahead, into one of two buffers."""

    def __init__(self, task: Task, table: Tensor, working: Sequence[int]) -> None:
        self.task, self.table, self.working = task, table, working
        train, most = task.data.train, table[0].numel()
        size = _end(train.inputs, most) + _end(train.targets, most)
        pinned = task.device.type == "cuda"
        self.here = [torch.empty(size, dtype=torch.uint8, pin_memory=pinned) for _ in range(2)]
        self.there = [torch.empty(size, dtype=torch.uint8, device=task.device) for _ in range(2)]
        self.order = torch.arange(most, device=task.device)  # a batch is copied as it is asked for
        self.side = Side(task.device)
        self.space: Tensor | None = None
        self._send(0)

    def __call__(self, step: int, rows: int) -> tuple[Tensor, Tensor]:
        self.side.arrived(step % 2)
        if step + 1 < len(self.table):
            self._send(step + 1)
        stored = self._views(self.there[step % 2], step)
        index = self.order[: rows * self.table.shape[2]].view(rows, -1)
        inputs, targets = self.task.data.gather(index, self.task.dtype, self.space, stored)
        self.space = inputs if self.space is None else self.space
        return inputs, targets

    def _send(self, step: int) -> None:
        slot, index = step % 2, self.table[step, : self.working[step]].reshape(-1)
        self.side.free(slot)
        stored, train = self._views(self.here[slot], step), self.task.data.train
        torch.index_select(train.inputs, 0, index, out=stored.inputs)
        torch.index_select(train.targets, 0, index, out=stored.targets)
        size = _end(train.inputs, len(index)) + _end(train.targets, len(index))
        self.side.copy(slot, self.there[slot][:size], self.here[slot][:size])

    def _views(self, buffer: Tensor, step: int) -> Examples:
        """A buffer as the examples of that step."""
        train, count = self.task.data.train, self.working[step] * self.table.shape[2]
        start = _end(train.inputs, count)
        return Examples(_view(buffer, train.inputs, count), _view(buffer[start:], train.targets, count))


class Side:
    """Copies to a device beside its work, on a stream of their own; a device without streams copies at once."""

    def __init__(self, device: torch.device) -> None:
        self.stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self.events = [torch.cuda.Event() for _ in range(2)] if self.stream is not None else []

    def free(self, slot: int) -> None:
        """Wait, on the host, until what was last copied from this slot has left it."""
        if self.stream is not None:
            self.events[slot].synchronize()

    def copy(self, slot: int, there: Tensor, here: Tensor) -> None:
        if self.stream is None:
            there.copy_(here)
            return
        self.stream.wait_stream(torch.cuda.current_stream())  # the step that read this slot was asked for before
        with torch.cuda.stream(self.stream):
            there.copy_(here, non_blocking=True)
            self.events[slot].record(self.stream)

    def arrived(self, slot: int) -> None:
        """The device's next work begins when the slot is filled; the host goes on."""
        if self.stream is not None:
            torch.cuda.current_stream().wait_event(self.events[slot])


def _end(like: Tensor, count: int) -> int:
    """Bytes of so many rows, so that what follows is aligned."""
    size = count * prod(like.shape[1:]) * like.itemsize
    return -(-size // ALIGNED) * ALIGNED


def _view(buffer: Tensor, like: Tensor, count: int) -> Tensor:
    """The buffer's first bytes as `count` rows like those."""
    size = count * prod(like.shape[1:]) * like.itemsize
    return buffer[:size].view(like.dtype).view(count, *like.shape[1:])
