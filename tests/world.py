"""A pool of gloo ranks that lives for the whole test session (importing torch once per rank)."""

import os
import socket
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def _serve(rank: int, size: int, port: int, calls: Any, answers: Any) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=size)
    while (call := calls.get()) is not None:
        function, args = call
        try:
            answers.put((rank, function(*args), None))
        except BaseException:  # report it to the test instead of hanging the other ranks
            answers.put((rank, None, traceback.format_exc()))
    dist.destroy_process_group()


class World:
    """`World(2).run(f, x)` calls f(x) on two ranks and returns both results in rank order."""

    def __init__(self, size: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        context = mp.get_context("spawn")
        self.size = size
        self.answers = context.Queue()
        self.calls = [context.Queue() for _ in range(size)]
        self.ranks = [
            context.Process(target=_serve, args=(r, size, port, q, self.answers), daemon=True)
            for r, q in enumerate(self.calls)
        ]
        for rank in self.ranks:
            rank.start()

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        replies = self.try_run(function, *args)
        errors = [error for _, error in replies if error]
        if errors:
            raise AssertionError(errors[0])
        return [value for value, _ in replies]

    def try_run(self, function: Callable[..., Any], *args: Any) -> list[tuple[Any, str | None]]:
        """(result, traceback) of every rank, in rank order."""
        for queue in self.calls:
            queue.put((function, args))
        replies = sorted((self.answers.get(timeout=180) for _ in self.ranks), key=lambda answer: answer[0])
        return [(value, error) for _, value, error in replies]

    def close(self) -> None:
        for queue in self.calls:
            queue.put(None)
        for rank in self.ranks:
            rank.join(timeout=30)
