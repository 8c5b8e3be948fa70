"""Who is computed where and with whom; a pure function of the client list, the seed and the round.

Bits must not depend on the number of ranks, and some kernels' bits depend on how many rows they see. So the
grouping never looks at the world: clients are dealt once into *blocks* (by size, then id), a block is the unit of
placement, and a round's *cohorts* are formed inside a block from its active members. Only which rank computes a
cohort depends on the world. Methods without client memory form cohorts from all active clients, and any rank may
compute them.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedddp.rng import stream


def default_width(params: int, convolutional: bool, clients: int) -> int:
    """A fixed rule, so that it never differs between machines of a run.

    Dense models are fastest when a few clients' parameters and gradients share the cache; convolutions gain
    nothing from batching over clients on a CPU. A block per eighth of the clients leaves enough for balance.
    """
    if convolutional:
        return 1
    return max(1, min(1_500_000 // max(params, 1), clients // 8, 64))


@dataclass(frozen=True)
class Assignment:
    """One cohort and the rank that computes it."""

    ids: tuple[int, ...]  # larger clients first, so that those still working are a prefix
    rank: int


@dataclass(frozen=True)
class Plan:
    sizes: Tensor  # [K] examples of each client
    width: int  # most clients in a cohort
    blocks: tuple[tuple[int, ...], ...]
    home: Tensor  # [K] owner rank of each client
    block_of: Tensor  # [K]
    ranks: int

    @classmethod
    def make(cls, sizes: Tensor, width: int, participation: float, ranks: int) -> "Plan":
        """Blocks hold so many clients that about `width` of them are active in a round."""
        order = _by_size(sizes, torch.arange(len(sizes)))
        members = max(1, round(width / participation)) if width > 1 else 1
        count = -(-len(order) // members)
        blocks = [tuple(part.tolist()) for part in order.tensor_split(count)]
        placed = place([int(sizes[list(block)].sum()) for block in blocks], ranks)
        home, block_of = torch.empty(len(sizes), dtype=torch.long), torch.empty(len(sizes), dtype=torch.long)
        for number, (block, rank) in enumerate(zip(blocks, placed, strict=True)):
            home[list(block)], block_of[list(block)] = rank, number
        return cls(sizes, width, tuple(blocks), home, block_of, ranks)

    def at_home(self, rank: int) -> Tensor:
        return (self.home == rank).nonzero().squeeze(1)

    def cohorts(self, active: Tensor, memory: bool) -> list[Assignment]:
        """The round's cohorts, in an order that is the same on every rank and for every world."""
        if memory:
            groups = self._by_block(active)
            ranks = [int(self.home[group[0]]) for group in groups]
        else:
            groups = _cut(_by_size(self.sizes, active).tolist(), self.width)
            ranks = place([int(self.sizes[group].sum()) for group in groups], self.ranks)
        return [Assignment(tuple(g), r) for g, r in zip(groups, ranks, strict=True)]

    def _by_block(self, active: Tensor) -> list[list[int]]:
        order = _by_size(self.sizes, active)
        order = order[self.block_of[order].argsort(stable=True)]
        _, counts = self.block_of[order].unique_consecutive(return_counts=True)
        return [g for part in order.split(counts.tolist()) for g in _cut(part.tolist(), self.width)]


def sample(seed: int, round_: int, clients: int, participation: float) -> Tensor:
    """Ids of the clients that take part in a round, ascending; a fixed number, without replacement."""
    count = max(1, round(participation * clients))
    if count >= clients:
        return torch.arange(clients)
    order = torch.randperm(clients, generator=stream(seed, "sampling", round_))
    return order[:count].sort().values


def place(costs: Sequence[int], ranks: int) -> list[int]:
    """Greedy balance: the dearest first, each to the rank with the least so far."""
    loads = [(0, rank) for rank in range(ranks)]
    placed = [0] * len(costs)
    for item in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        load, rank = heapq.heappop(loads)
        placed[item] = rank
        heapq.heappush(loads, (load + costs[item], rank))
    return placed


def _by_size(sizes: Tensor, ids: Tensor) -> Tensor:
    """Larger clients first, then by id."""
    return ids[(-sizes[ids]).argsort(stable=True)]


def _cut(ids: list[int], width: int) -> list[list[int]]:
    """Consecutive groups of at most `width`, as even as can be."""
    count = -(-len(ids) // width)
    base, longer = divmod(len(ids), count)
    ends = [base * (i + 1) + min(i + 1, longer) for i in range(count)]
    return [ids[start:end] for start, end in zip([0, *ends[:-1]], ends, strict=True)]
