"""Checks of a split: the same deal everywhere, and every index in its place."""

import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from fedddp.checks.ranks import apart
from fedddp.checks.rows import Broken, Sheet
from fedddp.config import loading as configuration
from fedddp.config.loading import Config
from fedddp.core.data import Dataset
from fedddp.core.rng import stream
from fedddp.core.shards import Shards


@dataclass
class Checks:
    config: Config

    @cached_property
    def data(self) -> Dataset:
        found: Dataset = self.config.data.load()
        return found

    @cached_property
    def shards(self) -> Shards:
        return self._deal(self.config.seed_of("split"))

    def _deal(self, seed: int) -> Shards:
        return Shards.deal(self.config.split, self.data.train, seed)

    def deals(self) -> str:
        """It deals at all, indices of examples that there are, to as many clients as it says."""
        dealt = self.config.split.deal(self.data.train, stream(0, "split"))
        for client, part in enumerate([dealt.order] if isinstance(dealt, Shards) else dealt):
            if not isinstance(part, Tensor) or part.dtype != torch.int64 or part.dim() != 1:
                raise Broken(f"what client {client} is dealt is no int64 tensor [n] of indices: {part!r:.80}")
        said = self.config.split.count()
        if said is not None and said != self.shards.num_clients:
            raise Broken(f"count() says {said} clients, deal() makes {self.shards.num_clients}")
        return f"{len(self.shards.order)} of {len(self.data.train)} examples to {self.shards.num_clients} clients"

    def in_range(self) -> str:
        order = self.shards.order
        low, high = int(order.min()), int(order.max())
        if low < 0 or high >= len(self.data.train):
            raise Broken(f"indices {low}..{high}, but the training examples are 0..{len(self.data.train) - 1}")
        return f"indices {low}..{high}"

    def big_enough(self) -> str:
        sizes, least = self.shards.num_examples, self.config.split.minimum
        if int(sizes.min()) < least:
            raise Broken(f"client {int(sizes.argmin())} has {int(sizes.min())} examples, fewer than minimum={least}")
        return f"{int(sizes.min())}..{int(sizes.max())} examples per client, at least {least} wanted"

    def once(self) -> str:
        count = torch.bincount(self.shards.order)
        again = int((count > 1).sum())
        if not again:
            return "no example is dealt twice"
        text = f"{again} examples are dealt more than once, example {int(count.argmax())} {int(count.max())} times"
        if not self.config.split.repeats:
            raise Broken(f"{text}; if that is meant, say so in the class: repeats: ClassVar[bool] = True")
        return f"{text}, as it says (repeats)"

    def seed_decides(self) -> str:
        seed = self.config.seed_of("split")
        digests = [*(self._deal(seed).digest() for _ in range(2)), *apart(self._elsewhere, 2)]
        if len(set(digests)) > 1:
            raise Broken(
                f"seed {seed} gives different deals: {', '.join(digests)}; draw from the generator that deal() is given"
            )
        other = self._deal(seed + 1).digest()
        rest = "another seed gives the same deal" if other == digests[0] else f"{other} with another seed"
        return f"{digests[0]} twice here and in two other processes; {rest}"

    def _elsewhere(self) -> str:
        """The digest, where the global generators are in another state."""
        for seed in (torch.manual_seed, np.random.seed, random.seed):
            seed(os.getpid())
        return self._deal(self.config.seed_of("split")).digest()


def check(sheet: Sheet, words: Sequence[str], ranks: int) -> None:
    checks = Checks(configuration.load(None, words))
    rows = {
        "indices in range": checks.in_range,
        "smallest client": checks.big_enough,
        "each example once": checks.once,
        "the seed alone decides": checks.seed_decides,
    }
    if not sheet.hold("deals", checks.deals):
        sheet.skip([*rows], "it does not deal")
        return
    for name, row in rows.items():
        sheet.hold(name, row)
