"""Where the examples lie that a cohort computes with: in the steps of some epochs, and in a pass through all."""

from typing import NamedTuple

from torch import Tensor

from fedddp.core.data import Examples


class Schedule(NamedTuple):
    """Who computes what in the steps of some epochs."""

    source: Examples  # on the device, or on the host if every batch is sent from there
    table: Tensor  # [steps, C, B] where each batch's examples are among them, on the same
    working: list[int]  # [steps] rows at work
    counts: list[list[int]]  # [steps][C] real examples of each batch
    weights: Tensor  # [steps, C, B] on the device: 1 for real examples, 0 for padding; empty where there is none

    def short(self, step: int) -> bool:
        """Whether a row at work is padded."""
        return min(self.counts[step][: self.working[step]]) < self.table.shape[2]


class Chunk(NamedTuple):
    """Where some of a cohort's examples lie."""

    source: Examples  # on the device
    rows: Tensor  # [c, B] among them
    weights: Tensor | None  # [c, B] as a batch has them
    counts: list[int] | None  # [c]
