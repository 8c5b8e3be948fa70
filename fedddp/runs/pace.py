"""How often a run writes a checkpoint."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Pace:
    """How often to write a checkpoint: every so many rounds, or as often as costs a given share of the time."""

    every: int
    share: float
    worked: float = 0.0  # seconds since the last checkpoint
    cost: float = 1.0  # seconds that a checkpoint takes; a guess until one was written

    def due(self) -> bool:
        return self.every == 0 and self.worked * self.share > self.cost

    def round_took(self, seconds: float) -> None:
        self.worked += seconds

    @contextmanager
    def saving(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.cost, self.worked = time.perf_counter() - start, 0.0
