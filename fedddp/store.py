"""Client memory: one row per client, kept on the client's home rank."""

from typing import Any

import torch
from torch import Tensor

from fedddp import tree


class ClientStore:
    """Rows of a method's `Clients` tuple for the clients that live here, found by client id."""

    def __init__(self, ids: Tensor, memory: Any) -> None:
        self.ids = ids  # [H] ascending
        self.memory = memory  # every leaf [H, ...]

    @property
    def empty(self) -> bool:
        """Whether the method's clients remember nothing."""
        return not tree.leaves(self.memory)

    def read(self, ids: Tensor) -> Any:
        if self.empty:
            return self.memory
        rows = self._rows(ids)
        return tree.map_leaves(lambda leaf: leaf[rows], self.memory)

    def write(self, ids: Tensor, memory: Any, good: Tensor | None = None) -> None:
        """Remember what the clients made of their rows; a client left out keeps what it had."""
        if self.empty:
            return
        rows = self._rows(ids)
        new = tree.leaves(memory)
        for name, leaf in tree.leaves(self.memory).items():
            leaf[rows if good is None else rows[good]] = new[name] if good is None else new[name][good]

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
        if len(theirs):
            rows = self._rows(shard["ids"][theirs])
            for name, leaf in tree.leaves(self.memory).items():
                leaf[rows] = shard[name][theirs].to(leaf.device)
        return len(theirs)
