"""What several splits share: bases with their settings, Dirichlet draws, dealing by counts, and the smallest client."""

import numpy as np
import torch
from torch import Tensor

from fedddp.core.check import check, check_count
from fedddp.core.data import Examples
from fedddp.core.shards import Split

MOST = 100_000_000  # clients


class Counted(Split, extends=True):
    """A split into a given number of clients; most move points of the largest ones to those below `minimum`."""

    clients: int = 10  # number of clients, at least 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("split.clients", self.clients, most=MOST)

    def count(self) -> int:
        return self.clients


class Mixed(Counted, extends=True):
    """A split by Dirichlet draws over classes."""

    alpha: float = 0.5  # concentration of a client's mix of classes, above 0; small: few classes per client

    def __post_init__(self) -> None:
        super().__post_init__()
        check_alpha("split.alpha", self.alpha)


def check_alpha(key: str, alpha: float) -> None:
    """Beyond these, logarithms of draws overflow; long before, nothing changes any more."""
    check(key, alpha, 1e-30 <= alpha <= 1e30, "from 1e-30 to 1e30")


def labels(examples: Examples) -> Tensor:
    """The class of each example [N], for splits that deal class by class."""
    targets = examples.targets
    if targets.dim() != 1 or targets.is_floating_point():
        raise ValueError(
            "split.name: this split deals class by class, and the data has no single class for each example; "
            "choose iid, lognormal, natural or file"
        )
    return targets.long()


def class_sizes(targets: Tensor) -> Tensor:
    """[classes] examples of each class."""
    return torch.bincount(targets)


def log_dirichlet(alpha: float, rows: int, columns: int, generator: torch.Generator) -> Tensor:
    """[rows, columns] logarithms of draws of a symmetric Dirichlet.

    Gamma(alpha) = Gamma(alpha + 1) · U^(1/alpha), taken in logarithms, so that no alpha underflows to 0/0.
    """
    draw = np.random.default_rng(int(torch.randint(2**62, (1,), generator=generator)))
    gamma = np.log(draw.standard_gamma(alpha + 1, (rows, columns)))
    gamma += np.log1p(-draw.random((rows, columns))) / alpha
    return torch.from_numpy(gamma).log_softmax(1)


def counts_of(shares: Tensor, available: Tensor) -> Tensor:
    """[K, classes] whole points for shares [K, classes] of each class; the roundings of a class add up."""
    ends = (shares.cumsum(0) * available).round().long()
    ends[-1] = available
    return ends.diff(dim=0, prepend=torch.zeros_like(ends[:1]))


def deal_counts(targets: Tensor, counts: Tensor, generator: torch.Generator, again: bool = False) -> list[Tensor]:
    """Give client k counts[k, c] points of class c: consecutive runs of the class's shuffled points.

    A client's points are ordered by class. When a class runs out, later clients get fewer, or with `again` its
    first points are given out again.
    """
    order = torch.randperm(len(targets), generator=generator)
    order = order[targets[order].argsort(stable=True)]
    owners, points = [], []
    for members, wanted in zip(order.split(class_sizes(targets).tolist()), counts.T, strict=True):
        owner = torch.repeat_interleave(wanted)
        if again and len(members):
            members = members[torch.arange(len(owner)) % len(members)]
        given = min(len(owner), len(members))
        owners.append(owner[:given])
        points.append(members[:given])
    return (
        by_owner(torch.cat(owners), torch.cat(points), len(counts)) if owners else by_owner(order, order, len(counts))
    )


def by_owner(owner: Tensor, points: Tensor, clients: int) -> list[Tensor]:
    """The points of each client, in the order they come in."""
    return list(points[owner.argsort(stable=True)].split(torch.bincount(owner, minlength=clients).tolist()))


def fill_up(parts: list[Tensor], minimum: int, generator: torch.Generator) -> list[Tensor]:
    """Move random points of the largest clients to those with fewer than `minimum`.

    Where there are too few points for all, nothing is moved: who joins the parts names the client that is too small.
    """
    sizes = torch.tensor([len(part) for part in parts])
    need = (minimum - sizes).clamp_min(0)
    if not need.any() or minimum * len(parts) > int(sizes.sum()):
        return parts
    given = []
    for donor, count in enumerate(_surplus(sizes, int(need.sum())).tolist()):
        if count:
            order = torch.randperm(len(parts[donor]), generator=generator)
            given.append(parts[donor][order[:count]])
            parts[donor] = parts[donor][order[count:].sort().values]
    small = need.nonzero().flatten().tolist()
    for client, gift in zip(small, torch.cat(given).split(need[small].tolist()), strict=True):
        parts[client] = torch.cat([parts[client], gift])
    return parts


def _surplus(sizes: Tensor, wanted: int) -> Tensor:
    """[K] how many each client gives so that together they give `wanted` and the largest become as small as can be."""
    low, high = 0, int(sizes.max())
    while low < high:  # the highest level above which at least `wanted` points lie
        level = (low + high + 1) // 2
        enough = int((sizes - level).clamp_min(0).sum()) >= wanted
        low, high = (level, high) if enough else (low, level - 1)
    give = (sizes - low).clamp_min(0)
    too_many = int(give.sum()) - wanted
    give[give.nonzero().flatten()[:too_many]] -= 1
    return give
