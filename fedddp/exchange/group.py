"""The only module that talks to torch.distributed."""

import os
import socket
import time
from array import array
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d

from fedddp.core.device import sharing
from fedddp.exchange.meeting import Meeting
from fedddp.exchange.shared_memory import Across, Shared, open_shared
from fedddp.exchange.watch import Absent, Found, Watch, limit, told
from fedddp.exchange.watch import RankLost as RankLost

PIECE = 1 << 20  # words of a long sum that go together: the buffers do not grow with the message
ON_THE_WAY = 4  # pieces at once


class PeerFailed(RuntimeError):
    """Something that must succeed everywhere failed on some rank; the text is that rank's."""


def in_world() -> bool:
    """Whether this process is a rank already: of a world of one that is open, or of somebody else's."""
    return dist.is_initialized()


class Exchange:
    """Collectives over all ranks. A world of one is still a world: no special case.

    `shares`: sums, and what follows the first of them, go through memory that the ranks of a machine see (a fiftieth of
    a millisecond instead of two), and between machines by one rank of each.
    """

    opened: ClassVar[int] = 0  # worlds that this process has joined

    def __init__(self, device: torch.device | None = None, shares: bool = True, timeout: float = 600.0) -> None:
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.device, self.timeout = device or torch.device("cpu"), timeout
        self.shares = self.world_size > 1 and shares
        self.ours = False
        self.through_host = False  # sums of a device's tensors, too: where ranks share a GPU, which nccl refuses
        self.watch: Watch | None = None
        self._shared: Shared | None = None
        self._sockets: dict[torch.device, Sockets] = {}

    @classmethod
    def connect(
        cls, device: torch.device, timeout: float = 600.0, asked: Callable[[], bool] = lambda: False
    ) -> "Exchange":
        """The world that this process is in already, or the one that torchrun or Slurm describes, or a world of one.

        `asked`: whether this process should end, while it waits for others.
        """
        if dist.is_initialized():
            return cls(device, timeout=timeout)._watched()
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        rank, ranks = (int(os.environ.get(name, value)) for name, value in (("RANK", "0"), ("WORLD_SIZE", "1")))
        cls.opened += 1
        wait, watch = timedelta(seconds=timeout), None

        def begin(store: c10d.Store) -> None:
            dist.init_process_group(backend, store=store, rank=rank, world_size=ranks, timeout=wait)

        if ranks == 1:
            begin(c10d.HashStore())
        else:  # no world of this process reads an earlier one's keys
            watch = Meeting(rank, ranks, timeout, asked).hold(f"fedddp/{cls.opened}", begin)
        made = cls(device, timeout=timeout)
        made.ours, made.watch = True, watch
        if device.type == "cuda":
            made.share_devices(sharing())
        return made

    def share_devices(self, ranks: int) -> None:
        """`ranks` of this machine are on each of its GPUs; if that is more than one anywhere, all go through the host.

        nccl opens its connections with its first sum, so until then nothing of it is there.
        """
        own, self.device = self.device, torch.device("cpu")
        self.through_host = self.agree([ranks])[0] > 1
        self.device = self.device if self.through_host else own

    def close(self) -> None:
        """Leave a world that we joined; one that was there before us stays."""
        if self.watch is not None:
            self.watch.close()
        if self.ours:
            dist.destroy_process_group()

    def leave(self, said: str) -> None:
        """This rank fails, and says why to the others: they will miss it."""
        if self.watch is not None:
            self.watch.leave(said)

    def _watched(self) -> "Exchange":
        """In a world that was there before us, ranks tell each other through it where they answer."""
        if self.world_size > 1 and self.device.type == "cpu":
            self.watch = Watch(self.rank, os.environ.get("MASTER_ADDR", socket.gethostname()))
            addresses: list[Any] = [None] * self.world_size
            dist.all_gather_object(addresses, self.watch.address)
            self.watch.peers = dict(enumerate(addresses))
        return self

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
        device = self.device if self.through_host else device
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

    def among(self, ranks: list[int]) -> Across:
        """Sums and maxima over some of the ranks, for those to call; all ranks ask for it together."""
        group = self.call(dist.new_group, ranks, timeout=timedelta(seconds=self.timeout), backend="gloo")
        ways = {"sum": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX}

        def across(flat: Tensor, how: str) -> Callable[[], object]:
            work = dist.all_reduce(flat, op=ways[how], group=group, async_op=True)
            assert work is not None, "only the first rank of a machine talks to the others"
            return cast(Callable[[], object], work.wait)

        return across

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
        if self.watch is not None:
            self.watch.calls += 1
        start = time.monotonic()
        try:
            return collective(*args, **options)
        except RuntimeError as error:  # gloo and nccl name a socket, not a cause
            raise self._lost(error, late=time.monotonic() - start > 0.9 * self.timeout) from error

    def _lost(self, error: RuntimeError, late: bool) -> RankLost:
        seen = error if isinstance(error, Absent) else None
        if self.watch is not None:
            found, speaks = self.watch.find(late, seen)
        else:
            found, speaks = (Found(seen.lost, seen.how), True) if seen else (Found(), True)
        return RankLost(told(found, self.rank, limit(self.timeout), str(error).splitlines()[0]), speaks)


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
