"""Client memory: one row per client, kept on the client's home rank.

Rows lie where the work is done (device), in the host's memory beside a GPU (host), or in a mapped file (file) of which
only the pages in use are in memory; a run has the same bits with each.
"""

import mmap
import os
import tempfile
from collections.abc import Callable, Iterator
from math import prod
from typing import Any

import torch
from torch import Tensor

from fedddp.core import tree

PLACES = ("device", "host", "file")
PIECE = 1 << 22  # bytes moved at a time, where a whole shard would double the memory


class ClientStore:
    """Rows of a method's `Clients` tuple for the clients that live here, found by client id."""

    def __init__(self, ids: Tensor, memory: Any, device: torch.device | None = None) -> None:
        self.ids = ids  # [H] ascending
        self.memory = memory  # every leaf [H, ...]
        self.device = device  # where rows are worked on, if they are kept elsewhere
        self.maps: list[mmap.mmap] = []

    @classmethod
    def make(cls, ids: Tensor, init: Callable[[int], Any], place: str = "device") -> "ClientStore":
        """Rows of clients that all start alike: `init(count)` makes so many."""
        if place == "device":
            return cls(ids, init(len(ids)))
        one = init(1)
        device = next((leaf.device for leaf in tree.leaves(one).values()), None)
        store = cls(ids, None, device)
        hold = store._pinned if place == "host" else store._mapped
        store.memory = tree.map_leaves(lambda leaf: hold(leaf.cpu(), len(ids)), one)
        return store

    def _pinned(self, first: Tensor, count: int) -> Tensor:
        held = torch.empty(count, *first.shape[1:], dtype=first.dtype, pin_memory=torch.cuda.is_available())
        return held.copy_(first)

    def _mapped(self, first: Tensor, count: int) -> Tensor:
        """Rows in a file that has no name, so that nothing is left behind when the process ends, however it ends."""
        shape = (count, *first.shape[1:])
        size = prod(shape) * first.itemsize
        if not size:
            return first.new_empty(shape)
        try:
            with tempfile.TemporaryFile() as file:
                os.posix_fallocate(file.fileno(), 0, size)  # a full disk shows now, not in the middle of a round
                self.maps.append(mmap.mmap(file.fileno(), size))
        except OSError as error:
            where = tempfile.gettempdir()
            raise ValueError(
                f"federation.rows=file: no room for {size} bytes in {where} ({error.strerror}); "
                "name another folder with TMPDIR"
            ) from error
        held = torch.frombuffer(self.maps[-1], dtype=first.dtype).view(shape)
        return held.copy_(first) if bool(first.any()) else held  # a new file is zeros, which need no page

    @property
    def empty(self) -> bool:
        """Whether the method's clients remember nothing."""
        return not tree.leaves(self.memory)

    def read(self, ids: Tensor) -> Any:
        if self.empty:
            return self.memory
        rows = self._rows(ids)
        return tree.map_leaves(lambda leaf: leaf[rows].to(self.device or leaf.device), self.memory)

    def write(self, ids: Tensor, memory: Any, good: Tensor | None = None) -> None:
        """Remember what the clients made of their rows; a client left out keeps what it had."""
        if self.empty:
            return
        rows, new = self._rows(ids), tree.leaves(memory)
        for name, leaf in tree.leaves(self.memory).items():
            if good is None:
                leaf[rows] = new[name].to(leaf.device)
            else:
                leaf[rows[good.cpu()]] = new[name][good].to(leaf.device)
        self.let_go()

    def let_go(self) -> None:
        """Mapped pages leave this process; what was written stays in the file."""
        for pages in self.maps:
            pages.madvise(mmap.MADV_DONTNEED)

    def _rows(self, ids: Tensor) -> Tensor:
        rows = torch.searchsorted(self.ids, ids)
        assert torch.equal(self.ids[rows], ids), "a client was computed away from home"
        return rows

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint keeps of this rank."""
        return {"ids": self.ids, **tree.leaves(self.memory)}

    def fill(self, shard: dict[str, Tensor]) -> int:
        """Take our clients' rows out of a shard written by any rank of any world; how many were found."""
        theirs = torch.isin(shard["ids"], self.ids).nonzero().squeeze(1)
        ours = self._rows(shard["ids"][theirs]) if len(theirs) else theirs
        for name, leaf in tree.leaves(self.memory).items() if len(theirs) else ():
            for piece in pieces(len(theirs), leaf):
                leaf[ours[piece]] = shard[name][theirs[piece]].to(leaf.device)
            self.let_go()
        return len(theirs)


def pieces(count: int, leaf: Tensor) -> Iterator[slice]:
    """`count` rows of the size of a leaf's, a few MB at a time."""
    step = max(1, PIECE * len(leaf) // (leaf.numel() * leaf.itemsize)) if leaf.numel() else max(1, count)
    for start in range(0, count, step):
        yield slice(start, min(start + step, count))
