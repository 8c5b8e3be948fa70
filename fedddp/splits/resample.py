"""As many clients as wanted: each draws its own examples from the whole training set, with replacement.

n_k ~ uniform on minimum..most,  q_k ~ Dir(alpha) over classes;  client k draws n_k classes from q_k and a point of each

For studies of scale, where a small set must serve many clients: points are shared, so nothing else grows with them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedddp.data import Examples
from fedddp.local import check
from fedddp.splits._dealing import Mixed, class_sizes, labels, log_dirichlet


@dataclass
class Split(Mixed):
    clients: int = 1000
    minimum: int = 10  # smallest client
    most: int = 20  # largest client

    def __post_init__(self) -> None:
        super().__post_init__()
        check("split.minimum", self.minimum, self.minimum >= 1, "at least 1")
        check("split.most", self.most, self.most >= self.minimum, f"at least split.minimum={self.minimum}")

    def deal(self, examples: Examples, generator: torch.Generator) -> list[Tensor]:
        targets = labels(examples)
        available = class_sizes(targets)
        sizes = torch.randint(self.minimum, self.most + 1, (self.clients,), generator=generator)
        present = available.nonzero().flatten()
        mixes = log_dirichlet(self.alpha, self.clients, len(present), generator).exp().cumsum(1)
        drawn = torch.rand(self.clients, self.most, dtype=torch.float64, generator=generator)
        place = torch.searchsorted(mixes, drawn).clamp_max(len(present) - 1)  # a row's sum may fall short of 1
        kind = present[place[torch.arange(self.most) < sizes.unsqueeze(1)]]
        within = (torch.rand(len(kind), dtype=torch.float64, generator=generator) * available[kind]).long()
        starts = available.cumsum(0) - available
        return list(targets.argsort(stable=True)[starts[kind] + within].split(sizes.tolist()))
