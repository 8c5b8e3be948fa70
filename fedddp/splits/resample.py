"""As many clients as wanted: each draws its own examples from the whole training set, with replacement.

n_k ~ uniform on minimum..most,  q_k ~ Dir(alpha) over classes;  client k draws n_k classes from q_k and a point of each

For studies of scale, where a small set must serve many clients: points are shared, so nothing else grows with them.
"""

from typing import ClassVar

import torch
from torch import Tensor

from fedddp.core.check import check, fits_memory
from fedddp.core.data import Examples
from fedddp.core.shards import Shards
from fedddp.splits._dealing import Mixed, class_sizes, labels, log_dirichlet

SOME = 10_000  # clients dealt at a time, so that nothing beside the result grows with them


class Split(Mixed):
    repeats: ClassVar[bool] = True
    clients: int = 1000
    minimum: int = 10  # fewest examples of a client, at least 1
    most: int = 20  # most examples of a client, at least split.minimum

    def __post_init__(self) -> None:
        super().__post_init__()
        check("split.minimum", self.minimum, self.minimum >= 1, "at least 1")
        check("split.most", self.most, self.most >= self.minimum, f"at least split.minimum={self.minimum}")

    def deal(self, examples: Examples, generator: torch.Generator) -> Shards:
        fits_memory(f"split.clients={self.clients}", 8 * self.clients * (self.most + 1), "use fewer clients")
        targets = labels(examples)
        available = class_sizes(targets)
        present = available.nonzero().flatten()
        by_class, starts = targets.argsort(stable=True), available.cumsum(0) - available
        sizes = torch.randint(self.minimum, self.most + 1, (self.clients,), generator=generator)
        order = torch.empty(int(sizes.sum()), dtype=torch.long)
        done = 0
        for some in sizes.split(SOME):
            kind = present[self._kinds(some, len(present), generator)]
            within = (torch.rand(len(kind), dtype=torch.float64, generator=generator) * available[kind]).long()
            torch.index_select(by_class, 0, starts[kind] + within, out=order[done : done + len(kind)])
            done += len(kind)
        return Shards(order, torch.cat([sizes.new_zeros(1), sizes.cumsum(0)]))

    def _kinds(self, sizes: Tensor, classes: int, generator: torch.Generator) -> Tensor:
        """The class of each example of clients of these sizes, one client after the other."""
        mixes = log_dirichlet(self.alpha, len(sizes), classes, generator).exp().cumsum(1)
        drawn = torch.rand(len(sizes), self.most, dtype=torch.float64, generator=generator)
        kinds = torch.searchsorted(mixes, drawn).clamp_max(classes - 1)  # a row's sum may fall short of 1
        return kinds[torch.arange(self.most) < sizes.unsqueeze(1)]
