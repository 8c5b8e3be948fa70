"""Who is computed where and with whom; a pure function of the client list, the seed and the round.

Bits must not depend on the number of ranks, and some kernels' bits depend on how many rows they see. So the
grouping never looks at the world: clients are dealt once into *blocks* (by size, then id), a block is the unit of
placement, and a round's *cohorts* are formed inside a block from its active members. Only which rank computes a
cohort depends on the world. Methods without client memory form cohorts from all active clients, and any rank may
compute them: they are dealt anew in every round, by what a cohort is predicted to cost.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from fedddp.core.rng import stream
from fedddp.rounds.cost import Cost, Work


def default_width(params: int, convolutional: bool, clients: int, device: str = "cpu") -> int:
    """A fixed rule of the kind of device and model: it never differs between the ranks of a run, and nothing is timed.

    On a CPU dense models are fastest when a few clients' parameters and gradients share the cache; so are narrow
    convolutions, and others (`convolutional`) gain nothing from batching over clients. Any other device wants work for
    thousands of cores, so a cohort is as wide as a few hundred million numbers allow. At least four blocks leave
    something to balance.
    """
    if device == "cpu" and convolutional:
        return 1
    room = 1_500_000 if device == "cpu" else 200_000_000
    return max(1, min(room // max(params, 1), clients // 4, 64))


@dataclass(frozen=True)
class Assignment:
    """One cohort and the rank that computes it."""

    ids: tuple[int, ...]  # larger clients first, so that those still working are a prefix
    rank: int
    work: Work


@dataclass(frozen=True)
class Plan:
    sizes: Tensor  # [K] examples of each client
    width: int  # most clients in a cohort
    home: Tensor  # [K] owner rank of each client
    block_of: Tensor  # [K]
    position: Tensor  # [K] among all clients, larger ones first, then by id; blocks are stretches of it
    ranks: int
    cost: Cost = field(compare=False)  # learns from the rounds

    @classmethod
    def make(cls, sizes: Tensor, width: int, participation: float, ranks: int, cost: Cost | None = None) -> "Plan":
        """Blocks hold so many clients that about `width` of them are active in a round."""
        cost = cost or Cost()
        order = (-sizes).argsort(stable=True)
        members = max(1, round(width / participation)) if width > 1 else 1
        blocks = order.tensor_split(-(-len(order) // members))
        placed = place([_expected(cost, sizes[block].tolist(), participation) for block in blocks], ranks)
        home, block_of, position = (torch.empty_like(order) for _ in range(3))
        for number, (block, rank) in enumerate(zip(blocks, placed, strict=True)):
            home[block], block_of[block] = rank, number
        position[order] = torch.arange(len(order))
        return cls(sizes, width, home, block_of, position, ranks, cost)

    def at_home(self, rank: int) -> Tensor:
        return (self.home == rank).nonzero().squeeze(1)

    def cohorts(self, active: Tensor, memory: bool) -> list[Assignment]:
        """The round's cohorts, in an order that is the same on every rank and for every world."""
        order = active[self.position[active].argsort()]
        groups = self._by_block(order) if memory else _cut(order.tolist(), self.width)
        sizes = iter(self.sizes[order].tolist())
        works = [self.cost.work([next(sizes) for _ in group]) for group in groups]
        if memory:
            ranks = self.home[[group[0] for group in groups]].tolist()
        else:
            ranks = place([self.cost.seconds(work) for work in works], self.ranks, self.cost.rank_speeds)
        return [Assignment(tuple(g), r, w) for g, r, w in zip(groups, ranks, works, strict=True)]

    def _by_block(self, order: Tensor) -> list[list[int]]:
        members: dict[int, list[int]] = {}
        for client, block in zip(order.tolist(), self.block_of[order].tolist(), strict=True):
            members.setdefault(block, []).append(client)
        return [group for part in members.values() for group in _cut(part, self.width)]


def sample(seed: int, round_: int, clients: int, participation: float, poisson: bool = False) -> Tensor:
    """Ids of the clients that take part in a round, ascending; a fixed number, without replacement.

    With `poisson` each takes part by itself, with this probability; all is drawn again where nobody would.
    """
    count = max(1, round(participation * clients))
    if (participation if poisson else count / clients) >= 1:
        return torch.arange(clients)
    if poisson:
        generator = stream(seed, "sampling", round_)
        found = torch.zeros(0, dtype=torch.int64)
        while not len(found):
            chance = torch.rand(clients, generator=generator, dtype=torch.float64)
            found = (chance < participation).nonzero().squeeze(1)
        return found
    return torch.tensor(sorted(draw(count, clients, stream(seed, "sampling", round_))))


def draw(count: int, total: int, generator: torch.Generator) -> list[int]:
    """The first `count` entries of torch.randperm(total), without the work of the others.

    Fisher-Yates settles them with its first `count` swaps, and only places that were swapped need be remembered.
    """
    if 4 * count > total:
        return torch.randperm(total, generator=generator)[:count].tolist()
    words = torch.empty(-(-count // 2), dtype=torch.int64).random_(-(2**63), None, generator=generator)
    bits = [half & 0xFFFFFFFF for word in words.tolist() for half in (word >> 32, word)]  # 32 for each swap
    moved: dict[int, int] = {}
    drawn = []
    for here in range(count):
        there = here + bits[here] % (total - here)
        drawn.append(moved.get(there, there))
        moved[there] = moved.get(here, here)
    return drawn


def place(costs: Sequence[float], ranks: int, speeds: Sequence[float] = ()) -> list[int]:
    """Greedy balance: the dearest first, each to the rank that would be done with it first."""
    if ranks == 1:
        return [0] * len(costs)
    done, speed = np.zeros(ranks), np.array(speeds if len(speeds) else [1.0] * ranks)
    placed = [0] * len(costs)
    for item in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        after = done + costs[item] / speed
        placed[item] = rank = int(after.argmin())  # the lowest of equals
        done[rank] = after[rank]
    return placed


def _expected(cost: Cost, sizes: list[int], participation: float) -> float:
    """Seconds of a block's round, when a share of its clients takes part."""
    work = cost.work(sizes)
    return cost.seconds(work._replace(steps=participation * work.steps))


def _cut(ids: list[int], width: int) -> list[list[int]]:
    """Consecutive groups of at most `width`, as even as can be."""
    count = -(-len(ids) // width)
    base, longer = divmod(len(ids), count)
    ends = [base * (i + 1) + min(i + 1, longer) for i in range(count)]
    return [ids[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
