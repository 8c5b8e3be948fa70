"""Ranks that live for the whole test session: four processes, of which the first n are a world of n.

They are forked from the process that forks a sweep's ranks, which has imported torch and fedddp already.
"""

import traceback
from collections.abc import Callable
from datetime import timedelta
from queue import Empty
from typing import Any

import torch
import torch.distributed as dist

from fedddp.jobs import pool

MOST = 4
PATIENCE = 180.0  # seconds for one call


def _serve(rank: int, port: int, calls: Any, answers: Any) -> None:
    torch.set_num_threads(1)
    store, opened = dist.TCPStore("127.0.0.1", port, is_master=False), 0
    while (call := calls.get()) is not None:
        number, size, function, args = call
        try:
            if number != opened:
                _join(dist.PrefixStore(str(number), store), rank, size)
                opened = number
            answers.put((rank, function(*args), None))
        except BaseException:  # report it to the test instead of hanging the other ranks
            answers.put((rank, None, traceback.format_exc()))
    _leave()


def _join(store: dist.Store, rank: int, size: int) -> None:
    _leave()
    wait = timedelta(seconds=PATIENCE)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=wait)


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


class Ranks:
    """The processes, started with the first call; `ranks(2).run(f, x)` calls f(x) on two of them."""

    def __init__(self) -> None:
        self.processes: list[Any] = []
        self.number, self.size = 0, 0  # of the world that is open

    def __call__(self, size: int) -> "World":
        assert size <= MOST
        return World(self, size)

    def call(self, size: int, function: Callable[..., Any], args: tuple[Any, ...]) -> list[tuple[Any, str | None]]:
        self._start()
        if size != self.size:
            self.number, self.size = self.number + 1, size
        for queue in self.calls[:size]:
            queue.put((self.number, size, function, args))
        try:
            replies = sorted((self.answers.get(timeout=PATIENCE) for _ in range(size)), key=lambda answer: answer[0])
        except Empty:
            self._end()
            raise
        if any(error for *_, error in replies):  # what a failure left in the sockets is nobody's
            self.size = 0
        return [(value, error) for _, value, error in replies]

    def _start(self) -> None:
        if self.processes:
            return
        context = pool.warm()
        self.store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.answers, self.calls = context.Queue(), [context.Queue() for _ in range(MOST)]
        for rank, queue in enumerate(self.calls):
            work = (rank, self.store.port, queue, self.answers)
            self.processes.append(context.Process(target=_serve, args=work, daemon=True))
            self.processes[-1].start()

    def _end(self) -> None:
        """Of ranks that hang; the next call starts others."""
        for process in self.processes:
            process.kill()
        self.processes, self.size = [], 0

    def close(self) -> None:
        for process, queue in zip(self.processes, self.calls if self.processes else [], strict=True):
            queue.put(None)
            process.join(timeout=30)


class World:
    """`World.run(f, x)` calls f(x) on every rank and returns the results in rank order."""

    def __init__(self, ranks: Ranks, size: int) -> None:
        self.ranks, self.size = ranks, size

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        replies = self.try_run(function, *args)
        errors = [error for _, error in replies if error]
        if errors:
            raise AssertionError(errors[0])
        return [value for value, _ in replies]

    def try_run(self, function: Callable[..., Any], *args: Any) -> list[tuple[Any, str | None]]:
        """(result, traceback) of every rank, in rank order."""
        return self.ranks.call(self.size, function, args)
