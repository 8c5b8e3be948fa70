"""What a round's exchange may tell: by default all that is useful, with `exchange.secure` only sums.

exchange.secure=none      grids from the largest numbers of each field; the engine's statistics of every client
exchange.secure=rank      public grids (exchange.range), the sum of a rank's clients behind masks, summed statistics
exchange.secure=client    the same, each client rounded to the grid by itself and behind masks of its own
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedddp.core.task import Task
from fedddp.exchange.group import Exchange
from fedddp.exchange.masks import Hide, Masks, meet, unmasked
from fedddp.exchange.messages import Gather, Mean, Message, Sum
from fedddp.exchange.ranges import ENGINE, Ranges
from fedddp.exchange.reduce import Reduction
from fedddp.rounds.plan import Assignment

STATS = (
    f"{ENGINE}stats"  # of every client: took part, loss, message norm, cohort's seconds; if wanted, first and last loss
)
SUMMED = f"{ENGINE}summed"  # over clients: took part, examples with a loss, their loss, numbers clipped
KINDS = ("none", "rank", "client")


@dataclass(frozen=True)
class Secrecy:
    secure: str = "none"
    ranges: Ranges | None = None

    @property
    def hides(self) -> bool:
        return self.secure != "none"

    def add(
        self, reduction: Reduction, message: Message, stats: Tensor, examples: Tensor, slot: Tensor, good: Tensor | None
    ) -> None:
        """A cohort's message into the sum, with the engine's statistics [C, 4 or 6] beside it."""
        kept: dict[str, Sum | Mean | Gather] = dict(message)
        clipped = None
        if self.ranges is not None:
            kept, clipped = self.ranges.clip(message)
        kept |= {SUMMED: Sum(_sums(stats, examples, clipped))} if self.hides else {STATS: Gather(stats)}
        if self.secure != "client":
            reduction.add(kept, slot, good)
            return
        for row in range(len(slot)):
            one = slice(row, row + 1)
            if good is None or bool(good[row]):
                reduction.add({name: _row(entry, one) for name, entry in kept.items()}, slot[one])

    def exponents(self, reduction: Reduction) -> list[int]:
        """What this rank says of its numbers: nothing where grids are public; that they are finite is checked."""
        found = reduction.exponents()
        return found if self.ranges is None else Reduction(0).exponents()

    def scales(self, reduction: Reduction, agreed: Sequence[int]) -> Sequence[int]:
        if self.ranges is None:
            return agreed
        return self.ranges.exponents([(f.name, f.kind, f.rows) for f in reduction.fields if f.kind != "gather"])

    def contributions(self, cohorts: Sequence[Assignment]) -> int:
        """How many numbers are rounded to the grid and added up, at most."""
        return sum(len(c.ids) for c in cohorts) if self.secure == "client" else len(cohorts)

    def hide(self, exchange: Exchange, cohorts: Sequence[Assignment]) -> Hide:
        """What is done to words before they leave this rank; every rank calls this."""
        if not self.hides:
            return unmasked
        ranks = range(exchange.world_size)
        parties = [c.rank for c in cohorts for _ in c.ids] if self.secure == "client" else list(ranks)
        return Masks(meet(exchange, parties)).hide


def public_ranges(secure: str, given: dict[str, float], gathered: list[str], task: Task, clients: int) -> Ranges | None:
    """`clients`: the most that one contribution adds up."""
    if not given and secure == "none":
        return None
    most = 1 if secure == "client" else clients
    return Ranges(given, float(task.num_examples.max()), most, gathered, strict=secure != "none")


def _sums(stats: Tensor, examples: Tensor, clipped: Tensor | None) -> Tensor:
    """Of each client [C, 4]: that it is there, its examples if it trained, their loss, and how much was clipped."""
    counted = torch.where(stats[:, 1].isfinite(), examples, 0)
    cut = torch.zeros_like(counted) if clipped is None else clipped.to(stats)
    return torch.stack([stats[:, 0], counted, stats[:, 1].nan_to_num() * counted, cut], dim=1)


def _row(entry: Sum | Mean | Gather, one: slice) -> Sum | Mean | Gather:
    if not isinstance(entry, Mean):
        return type(entry)(entry.value[one])
    weight = entry.weight
    return Mean(entry.value[one], weight[one] if isinstance(weight, Tensor) and weight.dim() else weight)
