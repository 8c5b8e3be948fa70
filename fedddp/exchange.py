"""The only module that talks to torch.distributed."""

import os
import socket
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor


class RankLost(RuntimeError):
    """A peer died or did not answer in time."""


class PeerFailed(RuntimeError):
    """Something that must succeed everywhere failed on some rank; the text is that rank's."""


class Exchange:
    """Collectives over all ranks. A world of one is still a world: no special case."""

    def __init__(self, device: torch.device | None = None) -> None:
        self.rank = dist.get_rank()
        self.world_size = dist.get_world_size()
        self.device = device or torch.device("cpu")

    @classmethod
    def connect(cls, device: torch.device, timeout: float = 600.0) -> "Exchange":
        """Join the world that torchrun or Slurm describes in the environment, or open a world of one."""
        backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
        wait = timedelta(seconds=timeout)
        if "RANK" in os.environ:
            dist.init_process_group(backend, timeout=wait)
        else:
            dist.init_process_group(
                backend, store=torch._C._distributed_c10d.HashStore(), rank=0, world_size=1, timeout=wait
            )
        return cls(device)

    def close(self) -> None:
        dist.destroy_process_group()

    def agree(self, numbers: list[int]) -> list[int]:
        """The elementwise maximum over ranks: how ranks settle scales, status and wishes."""
        flat = torch.tensor(numbers, dtype=torch.int64, device=self.device)
        self._call(dist.all_reduce, flat, op=dist.ReduceOp.MAX)
        agreed: list[int] = flat.tolist()
        return agreed

    def add(self, flat: Tensor) -> Tensor:
        """The sum over ranks of an int64 buffer, in place: exact in any order."""
        assert flat.dtype == torch.int64
        self._call(dist.all_reduce, flat)
        return flat

    def add_floats(self, flat: Tensor) -> Tensor:
        """The sum over ranks of floats, in place; its last bits depend on the number of ranks. For comparison only."""
        self._call(dist.all_reduce, flat)
        return flat

    def tell(self, text: str, source: int) -> str:
        """What rank `source` says, on every rank."""
        data = text.encode() if self.rank == source else b""
        size = self.agree([len(data)])[0]
        flat = torch.zeros(size, dtype=torch.uint8, device=self.device)
        if self.rank == source and size:
            flat.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        self._call(dist.broadcast, flat, src=source)
        return bytes(flat.tolist()).decode()

    def barrier(self) -> None:
        self.agree([0])

    def together(self, failure: str) -> None:
        """Go on only if no rank failed; otherwise every rank raises what the first failing one says."""
        me = self.world_size - self.rank  # larger for lower ranks, never 0
        first = self.agree([me if failure else 0])[0]
        if first:
            raise PeerFailed(self.tell(failure, self.world_size - first))

    def _call(self, collective: object, *args: object, **options: object) -> None:
        try:
            collective(*args, **options)  # type: ignore[operator]
        except RuntimeError as error:  # gloo and nccl name a socket, not a cause
            reason = str(error).splitlines()[0]
            raise RankLost(
                f"rank {self.rank} lost contact with another rank: it died or took longer than the time-out "
                f"(federation.timeout). The first failing rank's own message says why. [{reason}]"
            ) from error


def open_store(host: str) -> tuple[object, int]:
    """Where ranks meet: a store on a free port of `host` alone, and that port. It closes when the object goes."""
    listener = socket.create_server((host, 0))
    port = int(listener.getsockname()[1])
    fd = listener.detach()
    store = torch._C._distributed_c10d.TCPStore(host, port, is_master=True, wait_for_workers=False, master_listen_fd=fd)
    return store, port
