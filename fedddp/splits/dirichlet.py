"""Two-level Dirichlet: client sizes ~ Dir(size_alpha), classes within a client ~ Dir(alpha); every point once.

p ~ Dir(size_alpha) over clients,  q_k ~ Dir(alpha) over classes
client k gets the share p_k q_kc / Σ_j p_j q_jc of class c's points
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedddp.data import Examples
from fedddp.local import check


@dataclass
class Split:
    clients: int = 10
    alpha: float = 0.5  # small: few classes per client
    size_alpha: float = 1.0  # small: very unequal clients
    minimum: int = 1  # smallest client; points are moved from the largest ones to reach it

    def __post_init__(self) -> None:
        check("split.clients", self.clients, self.clients >= 1, "at least 1")
        check("split.alpha", self.alpha, self.alpha > 0, "above 0")
        check("split.size_alpha", self.size_alpha, self.size_alpha > 0, "above 0")

    def deal(self, examples: Examples, generator: torch.Generator) -> list[Tensor]:
        classes = int(examples.targets.max()) + 1
        sizes = dirichlet(self.size_alpha, 1, self.clients, generator)[0]
        mixes = dirichlet(self.alpha, self.clients, classes, generator)
        shares = sizes.unsqueeze(1) * mixes  # [K, classes]
        shares = shares / shares.sum(0).clamp_min(1e-300)
        parts: list[list[Tensor]] = [[] for _ in range(self.clients)]
        for label in range(classes):
            members = (examples.targets == label).nonzero().flatten()
            members = members[torch.randperm(len(members), generator=generator)]
            for client, piece in enumerate(_cut(members, shares[:, label])):
                parts[client].append(piece)
        return fill_up([torch.cat(part) for part in parts], self.minimum)


def dirichlet(alpha: float, rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """[rows, columns] draws of a symmetric Dirichlet, from the split's own generator."""
    import numpy as np

    seed = int(torch.randint(2**62, (1,), generator=generator))
    return torch.from_numpy(np.random.default_rng(seed).dirichlet([alpha] * columns, rows))


def _cut(members: Tensor, shares: Tensor) -> tuple[Tensor, ...]:
    """Consecutive runs in proportion to the shares; the roundings add up."""
    ends = (shares.cumsum(0) * len(members)).round().long()
    return members.tensor_split(ends[:-1])


def fill_up(parts: list[Tensor], minimum: int) -> list[Tensor]:
    """Move points from the largest clients until none is smaller than `minimum`."""
    if minimum * len(parts) > sum(map(len, parts)):
        return parts  # cannot be done; the caller reports the smallest client
    for small in sorted(range(len(parts)), key=lambda k: len(parts[k])):
        while len(parts[small]) < minimum:
            large = max(range(len(parts)), key=lambda k: len(parts[k]))
            moved = min(minimum - len(parts[small]), max(1, (len(parts[large]) - minimum) // 2))
            parts[small] = torch.cat([parts[small], parts[large][-moved:]])
            parts[large] = parts[large][:-moved]
    return parts
