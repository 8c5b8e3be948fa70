"""The only module that talks to torch.distributed."""

import os
import socket
from array import array
from collections.abc import Callable
from datetime import timedelta
from functools import cache
from typing import Any, ClassVar, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from fedddp.exchange.shared_memory import Shared, open_shared

PIECE = 1 << 20  # words of a long sum that go together: the buffers do not grow with the message
ON_THE_WAY = 4  # pieces at once


class RankLost(RuntimeError):
    """A peer died or did not answer in time."""


class PeerFailed(RuntimeError):
    """Something that must succeed everywhere failed on some rank; the text is that rank's."""


class Exchange:
    """Collectives over all ranks. A world of one is still a world: no special case.

    `shares`: sums, and what follows the first of them, go through memory that all ranks see, if they are all on one
    machine: a fiftieth of a millisecond instead of two.
    """

    opened: ClassVar[int] = 0  # worlds that this process has joined

    def __init__(self, device: torch.device | None = None, shares: bool = True, timeout: float = 600.0) -> None:
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.device, self.timeout = device or torch.device("cpu"), timeout
        self.shares = self.world_size > 1 and shares
        self.ours = False
        self._shared: Shared | None = None
        self._sockets: dict[torch.device, Sockets] = {}

    @classmethod
    def connect(cls, device: torch.device, timeout: float = 600.0) -> "Exchange":
        """The world that this process is in already, or the one that torchrun or Slurm describes, or a world of one."""
        if dist.is_initialized():
            return cls(device, timeout=timeout)
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        wait = timedelta(seconds=timeout)
        rank, ranks = (int(os.environ.get(name, value)) for name, value in (("RANK", "0"), ("WORLD_SIZE", "1")))
        store = _store(timeout) if "RANK" in os.environ else c10d.HashStore()
        attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
        cls.opened += 1
        named = c10d.PrefixStore(f"fedddp/{attempt}/{cls.opened}", store)  # no world reads an earlier one's keys
        dist.init_process_group(backend, store=named, rank=rank, world_size=ranks, timeout=wait)
        made = cls(device, timeout=timeout)
        made.ours = True
        return made

    def close(self) -> None:
        """Leave a world that we joined; one that was there before us stays."""
        if self.ours:
            dist.destroy_process_group()

    def agree(self, numbers: list[int]) -> list[int]:
        """The elementwise maximum over ranks: how ranks settle scales, status and wishes."""
        flat = torch.frombuffer(array("q", numbers), dtype=torch.int64)  # much quicker than tensor()
        if self._shared is not None and len(numbers) <= self._shared.source.shape[1]:
            flat = self.call(self._shared.most, flat)
        else:
            flat = flat.to(self.device)
            self.call(dist.all_reduce, flat, op=dist.ReduceOp.MAX)
        agreed: list[int] = flat.tolist()
        return agreed

    def gather(self, numbers: list[int]) -> list[list[int]]:
        """What every rank says, in rank order."""
        nothing = [-(2**63)] * len(numbers)
        said = self.agree([n for rank in range(self.world_size) for n in (numbers if rank == self.rank else nothing)])
        return [said[at : at + len(numbers)] for at in range(0, len(said), len(numbers))]

    def transport(self, words: int, device: torch.device) -> "Transport":
        """The way for a sum of so many int64: all ranks ask for the same. It is kept, since new memory is slow."""
        if self.shares and device.type == "cpu":
            self._shared = self._shared or open_shared(self, PIECE)
            self.shares = self._shared is not None
            if self._shared is not None:
                return self._shared
        slots, size = max(1, min(-(-words // PIECE), ON_THE_WAY)), max(1, min(words, PIECE))
        kept = self._sockets.get(device)
        if kept is None or kept.source.numel() < slots * size:
            kept = self._sockets[device] = Sockets(self, torch.empty(slots, size, dtype=torch.int64, device=device))
        return kept

    def add_floats(self, flat: Tensor) -> Tensor:
        """The sum over ranks of floats, in place; its last bits depend on the number of ranks. For comparison only."""
        self.call(dist.all_reduce, flat)
        return flat

    def tell(self, text: str, source: int) -> str:
        """What rank `source` says, on every rank."""
        data = text.encode() if self.rank == source else b""
        size = self.agree([len(data)])[0]
        flat = torch.zeros(size, dtype=torch.uint8, device=self.device)
        if self.rank == source and size:
            flat.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        self.call(dist.broadcast, flat, src=source)
        return bytes(flat.tolist()).decode()

    def barrier(self) -> None:
        self.call(dist.barrier)

    def together(self, failure: str) -> None:
        """Go on only if no rank failed; otherwise every rank raises what the first failing one says."""
        me = self.world_size - self.rank  # larger for lower ranks, never 0
        first = self.agree([me if failure else 0])[0]
        if first:
            raise PeerFailed(self.tell(failure, self.world_size - first))

    def call(self, collective: Callable[..., Any], *args: object, **options: object) -> Any:
        try:
            return collective(*args, **options)
        except RuntimeError as error:  # gloo and nccl name a socket, not a cause
            reason = str(error).splitlines()[0]
            raise RankLost(
                f"rank {self.rank} lost contact with another rank: it died or took longer than the time-out "
                f"(federation.timeout). The first failing rank's own message says why. [{reason}]"
            ) from error


class Transport(Protocol):
    """Where ranks add up int64, exactly in any order, a piece of a long sum at a time."""

    source: Tensor  # [slots, size] this rank writes a piece's numbers into a slot
    result: Tensor  # [slots, size] and reads the sums there; may be the same memory

    def start(self, slot: int, words: int) -> Callable[[], None]:
        """Add the first words of the slot's source over ranks; the sums are there when what is returned was called."""


class Sockets:
    """gloo or nccl: in place and in the background, so that a piece is encoded or decoded while others travel."""

    def __init__(self, exchange: Exchange, buffer: Tensor) -> None:
        self.exchange = exchange
        self.source = self.result = buffer

    def start(self, slot: int, words: int) -> Callable[[], None]:
        work = self.exchange.call(dist.all_reduce, self.source[slot, :words], async_op=True)
        return lambda: self.exchange.call(work.wait)


@cache
def _store(timeout: float) -> c10d.Store:
    """Where the ranks of this job meet, as torchrun's variables say; the same for all worlds of the process."""
    host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    there = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"  # the launcher keeps it
    master = not there and os.environ["RANK"] == "0"
    wait = timedelta(seconds=timeout)
    return c10d.TCPStore(host, port, is_master=master, timeout=wait, wait_for_workers=False)


def open_store(host: str) -> tuple[object, int]:
    """Where ranks meet: a store on a free port of `host` alone, and that port. It closes when the object goes."""
    listener = socket.create_server((host, 0))
    port = int(listener.getsockname()[1])
    fd = listener.detach()
    store = c10d.TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=fd)
    return store, port
