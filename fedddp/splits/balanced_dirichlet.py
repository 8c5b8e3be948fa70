"""Balanced Dirichlet: clients of equal size, each with its own mix of classes ~ Dir(alpha); every point once.

q_k ~ Dir(alpha) over classes;  client after client draws its N/K points by q_k from what is left

As in Hsu et al. (2019) and FedDyn (Acar et al. 2021): a class that has run out drops out of the later clients' mixes.
With `parents` this is the Pachinko allocation of Reddi et al. (2021), which FedPA uses for CIFAR-100: a mix over
coarse classes ~ Dir(alpha), and within each coarse class a mix over its fine ones ~ Dir(child_alpha).
"""

from dataclasses import field

import numpy as np
import torch
from torch import Tensor

from fedddp.core.check import check
from fedddp.core.data import Examples
from fedddp.splits._dealing import Mixed, check_alpha, class_sizes, deal_counts, labels, log_dirichlet


class Split(Mixed):
    parents: list[int] = field(default_factory=list)  # each class's coarse class, from 0; empty: no coarse classes
    child_alpha: float = 10.0  # concentration of the mix within a coarse class, above 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_alpha("split.child_alpha", self.child_alpha)
        check("split.parents", self.parents, all(n >= 0 for n in self.parents), "numbers of coarse classes, from 0")

    def deal(self, examples: Examples, generator: torch.Generator) -> list[Tensor]:
        targets = labels(examples)
        left = class_sizes(targets).numpy().copy()
        mixes = self._mixes(len(left), generator).exp().numpy()
        draw = np.random.default_rng(int(torch.randint(2**62, (1,), generator=generator)))
        base, longer = divmod(len(targets), self.clients)
        counts = np.zeros((self.clients, len(left)), dtype=np.int64)
        for client in range(self.clients):
            counts[client] = _draw(mixes[client], left, base + (client < longer), draw)
            left -= counts[client]
        return deal_counts(targets, torch.from_numpy(counts), generator)

    def _mixes(self, classes: int, generator: torch.Generator) -> Tensor:
        """[K, classes] logarithms of each client's mix."""
        if not self.parents:
            return log_dirichlet(self.alpha, self.clients, classes, generator)
        check("split.parents", self.parents, len(self.parents) == classes, f"a list of {classes}, one for each class")
        check("split.parents", self.parents, max(self.parents) < classes, f"numbers of coarse classes, below {classes}")
        parents = torch.tensor(self.parents)
        coarse = log_dirichlet(self.alpha, self.clients, int(parents.max()) + 1, generator)
        mixes = torch.empty(self.clients, classes, dtype=coarse.dtype)
        for parent in parents.unique().tolist():
            children = (parents == parent).nonzero().flatten()
            within = log_dirichlet(self.child_alpha, self.clients, len(children), generator)
            mixes[:, children] = coarse[:, [parent]] + within
        return mixes


def _draw(mix: np.ndarray, left: np.ndarray, wanted: int, draw: np.random.Generator) -> np.ndarray:
    """How many of each class, `wanted` together; every pass ends with enough points or with one class fewer."""
    taken = np.zeros_like(left)
    while wanted > 0:
        open_ = taken < left
        weight = np.where(open_, mix, 0.0)
        if weight.sum() < 1e-300:  # all its own classes have run out: anything that is left
            weight = left - taken
        drawn = np.minimum(draw.multinomial(wanted, weight / weight.sum()), left - taken)
        taken += drawn
        wanted -= int(drawn.sum())
    return taken
