"""By natural client: writers, speakers, hospitals, users, as the data comes.

Every point once, unless clients are left out (`keep`, and those smaller than `minimum`) or cut short (`most`).
"""

import torch
from torch import Tensor

from fedddp.core import shards
from fedddp.core.check import check
from fedddp.core.data import Examples
from fedddp.splits._dealing import by_owner


class Split(shards.Split):
    minimum: int = 1  # fewest examples of a client, at least 0; smaller ones are left out
    keep: int = 0  # take only so many of the clients, drawn at random; 0: all
    merge: int = 0  # put them together into so many, at random; 0: each for itself
    most: int = 0  # take only the first so many examples of each; 0: all

    def __post_init__(self) -> None:
        for name in ("keep", "merge", "most", "minimum"):
            check(f"split.{name}", getattr(self, name), getattr(self, name) >= 0, "at least 0")

    def deal(self, examples: Examples, generator: torch.Generator) -> list[Tensor]:
        if examples.clients is None:
            raise ValueError("split.name=natural: this data has no natural clients; choose another split, such as iid")
        _, owner, sizes = examples.clients.unique(return_inverse=True, return_counts=True)
        parts = by_owner(owner, torch.arange(len(owner)), len(sizes))
        parts = [part[: self.most or None] for part in parts if len(part) >= self.minimum]
        order = torch.randperm(len(parts), generator=generator)
        if self.keep:
            parts = [parts[i] for i in order[: self.keep].sort().values.tolist()]
        if self.merge:
            groups = torch.randperm(len(parts), generator=generator).tensor_split(max(1, min(self.merge, len(parts))))
            parts = [torch.cat([parts[i] for i in group.tolist()]) for group in groups if len(group)]
        return parts
