"""What a round leaves for the records: who took part, what it took and cost, and what clients said of themselves."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedddp.core.task import Task
from fedddp.rounds.plan import Assignment

PARTS = ("plan", "local", "exchange", "server")


@dataclass
class Report:
    """What a round leaves for the records."""

    round: int
    active: int = 0
    skipped: int = 0
    bytes: int = 0  # int64 words reduced, per rank
    bytes_up: float = 0  # what each client sends, in the method's own number format
    bytes_down: int = 0  # what each client is sent
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    idle: list[float] = field(default_factory=list)  # seconds that each rank's local work was shorter than the longest
    cohorts: list[Assignment] = field(default_factory=list)  # who was computed where
    clients: Tensor | None = None  # [active] ids
    took: Tensor | None = None  # [active] seconds of the client's cohort; 0 for a client left out
    losses: Tensor | None = None  # [active] mean training loss, NaN for a client left out
    ends: Tensor | None = None  # [active, 2] loss of its first batch and of its last, where that is wanted
    norms: Tensor | None = None  # [active] norm of what the client sent
    train_loss: float = float("nan")
    clipped: int | None = None  # numbers that were outside the public ranges, if there are any
    metrics: dict[str, float] = field(default_factory=dict)  # the method's own
    left_out: dict[int, str] = field(default_factory=dict)  # of this rank's clients: why
    checkpoint: bool = False  # some rank wishes for a checkpoint after this round
    stop: bool = False  # some rank was asked to stop

    def forget(self) -> None:
        """What tells of clients' data beside the method's own sums."""
        self.losses = self.norms = self.took = None
        self.train_loss, self.clipped, self.idle = float("nan"), None, []

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - start

    def note(self, stats: Tensor, task: Task) -> None:
        """Fill the report from what clients said of themselves; slots of clients left out are zero."""
        stats = stats.cpu()
        present = stats[:, 0] > 0
        self.skipped = int((~present).sum())
        losses = torch.where(present, stats[:, 1], torch.nan)
        self.norms = torch.where(present, stats[:, 2], torch.nan)
        seconds = stats[:, 3]
        self.took = seconds if self.took is None else self.took + seconds
        if bool(losses.isfinite().any()):  # the phase that trained, if a round has several
            assert self.clients is not None
            weight = task.num_examples[self.clients].double()
            weight = torch.where(losses.isfinite(), weight, 0)
            self.losses = losses
            self.ends = torch.where(present[:, None], stats[:, 4:], torch.nan) if stats.shape[1] > 4 else None
            self.train_loss = float((losses.nan_to_num() * weight).sum() / weight.sum())

    def note_sums(self, sums: Tensor) -> None:
        """The same where only sums over all clients are told."""
        present, examples, loss, clipped = sums.tolist()
        self.skipped = self.active - round(present)
        self.clipped = (self.clipped or 0) + round(clipped)
        if examples > 0:
            self.train_loss = loss / examples
