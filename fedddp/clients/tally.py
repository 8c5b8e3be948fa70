"""Losses and steps as a cohort's gradients are taken."""

from typing import NamedTuple

import torch
from torch import Tensor


class Tally(NamedTuple):
    """What the oracle saw, for the records; no method reads it."""

    loss: Tensor  # [C] sum over steps
    steps: Tensor  # [C] on the host, which knows them: a device need not count
    ends: Tensor | None = (
        None  # [2, C] of the first batch and of the last, where that is wanted; NaN before there is one
    )

    def note(self, loss: Tensor) -> None:
        """A batch's losses [c] of the first rows."""
        rows = loss.shape[0]
        whole = rows == self.loss.shape[0]  # slicing costs as much as adding
        (self.loss if whole else self.loss[:rows]).add_(loss)
        (self.steps if whole else self.steps[:rows]).add_(1)
        if self.ends is not None:
            first, last = self.ends[:, :rows]
            first.copy_(torch.where(first.isnan(), loss, first))
            last.copy_(loss)

    def join(self, other: "Tally") -> None:
        """What another one saw of the same rows, later."""
        self.loss.add_(other.loss)
        if self.ends is not None and other.ends is not None:
            (first, last), (begun, done) = self.ends, other.ends
            first.copy_(torch.where(first.isnan(), begun, first))
            last.copy_(torch.where(done.isnan(), last, done))

    def clear(self) -> None:
        self.loss.zero_()
        if self.ends is not None:
            self.ends.fill_(torch.nan)
