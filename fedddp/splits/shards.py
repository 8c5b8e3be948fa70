"""Shards: the data sorted by class, cut into equal pieces, and `shards` pieces for each client; every point once.

"Hessian-weighted aggregation" (HWA), non-IID type II: 20 pieces for 10 clients, 2 pieces of 2 classes each. With
distinct=false pieces are dealt at random as in McMahan et al. (2017), so a client may get two of the same class.
"""

import torch
from torch import Tensor

from fedddp.core.check import check_count
from fedddp.core.data import Examples
from fedddp.splits._dealing import Counted, by_owner, labels

MOST = 10_000  # pieces for each client


class Split(Counted):
    shards: int = 2  # pieces of sorted data for each client, at least 1
    distinct: bool = True  # whether a client's pieces are of different classes, wherever the classes' sizes allow it

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("split.shards", self.shards, most=MOST)

    def deal(self, examples: Examples, generator: torch.Generator) -> list[Tensor]:
        targets = labels(examples)
        order = torch.randperm(len(targets), generator=generator)
        rank = torch.randperm(
            int(targets.max()) + 1 if len(targets) else 0, generator=generator
        )  # classes in any order
        order = order[rank[targets[order]].argsort(stable=True)]
        pieces = order.tensor_split(self.clients * self.shards)
        owner = self._owners(generator)
        sizes = torch.tensor([len(piece) for piece in pieces])
        return by_owner(owner.repeat_interleave(sizes), order, self.clients)

    def _owners(self, generator: torch.Generator) -> Tensor:
        """The client of each piece. Distinct: each client gets one piece out of every stretch of K neighbours."""
        if not self.distinct:
            return torch.randperm(self.clients * self.shards, generator=generator) % self.clients
        return torch.cat([torch.randperm(self.clients, generator=generator) for _ in range(self.shards)])
