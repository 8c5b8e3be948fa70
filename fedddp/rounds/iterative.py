"""What solvers that go over their data in batches share: settings, a learning rate, and the loop of SGD and Adam."""

from abc import abstractmethod
from collections.abc import Callable
from math import cos, pi
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Batch, Cohort
from fedddp.clients.graphs import Now, Work
from fedddp.core import gaussian, kernels
from fedddp.core.check import check, check_count
from fedddp.core.gaussian import Family
from fedddp.core.task import Task
from fedddp.rounds.solver import Fit, Nothing, PointSolver, Solver

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda _: 1.0,
    "cosine": lambda done: 0.5 * (1 + cos(pi * done)),
    "linear": lambda done: 1 - done,
}


class Iterative(Solver, extends=True):
    """What every iterative solver can be told."""

    lr: float = 0.1  # learning rate of a client's steps on its mean loss, above 0
    epochs: int = 1  # passes over a client's data in a round, at least 1
    batch_size: int = 32  # examples in a step, at least 1; the last batch of an epoch may be smaller
    micro_batch: int = 0  # examples of a step computed together, to the same gradient in less memory; 0: all of them
    recompute: bool = False  # whether blocks of layers compute their activations twice instead of keeping them
    clip: float = 0.0  # largest norm of a client's gradient; 0: no clipping
    schedule: str = "constant"  # of the learning rate over rounds: constant, cosine or linear
    decay: float = 1.0  # the learning rate's factor per round, beside the schedule, in (0, 1]
    keep: bool = False  # whether to keep the optimiser's state between a client's rounds

    def __post_init__(self) -> None:
        check("local.lr", self.lr, self.lr > 0, "a number above 0")
        check_count("local.epochs", self.epochs)
        check_count("local.batch_size", self.batch_size)
        check_count("local.micro_batch", self.micro_batch, least=0)
        check("local.clip", self.clip, self.clip >= 0, "0 for none, or the largest norm")
        check("local.decay", self.decay, 0 < self.decay <= 1, "in (0, 1]")
        check("local.schedule", self.schedule, self.schedule in SCHEDULES, " or ".join(SCHEDULES))

    def uses_total(self) -> bool:
        return self.schedule != "constant"

    def passes(self) -> tuple[int, int]:
        return self.epochs, self.batch_size

    def rate(self, cohort: Cohort) -> float:
        """This round's learning rate; constant within a round."""
        done = cohort.round / max(cohort.task.rounds, 1)
        return self.lr * SCHEDULES[self.schedule](done) * self.decay**cohort.round


class Descent(Iterative, PointSolver, extends=True):
    """The loop that SGD and Adam share; a solver says what it keeps and how it steps."""

    def gradients(self) -> int:
        return 1

    @abstractmethod
    def blank(self, rows: int, task: Task) -> Any:
        """The state of `rows` clients before their first step."""

    @abstractmethod
    def step(self, theta: Tensor, grad: Tensor, state: Any, lr: float | Tensor) -> None:
        """One step on the rows [c, P], everything in place; `grad` may be overwritten.

        `lr` is a tensor, float64 [c], on a device with fused kernels.
        """

    def plain(self) -> bool:
        """Whether `step` is theta - lr·grad and nothing else: the model's products may then take it themselves."""
        return False

    def memory(self, task: Task, count: int) -> Any:
        return self.blank(count, task) if self.keep else Nothing()

    def minimise(
        self,
        cohort: Cohort,
        start: Tensor,
        memory: Any,
        site: Tensor | None = None,
        family: Family = gaussian.diagonal,
        watch: Callable[[int, Tensor], None] | None = None,
    ) -> Fit:
        return self._descend(cohort, start, memory, site, family, watch)

    def _descend(
        self,
        cohort: Cohort,
        start: Tensor,
        memory: Any,
        site: Tensor | None,
        family: Family,
        watch: Callable[[int, Tensor], None] | None = None,
        kept: Tensor | None = None,
        slots: tuple[Tensor, ...] = (),
        state: Any = None,
    ) -> Fit:
        """`kept` [C, most, P] collects means of the path: `slots` say in each step where, and with what share.

        `state` is what steps begin with, where that is neither the client's memory nor blank.
        """
        theta, lr = start.expand(len(cohort), -1).clone(), self.rate(cohort)
        if state is None:
            state = type(memory)(*memory) if self.keep else self.blank(len(cohort), cohort.task)
        pull = None if site is None else _per_example(site, cohort, family)
        rates = _rates(theta, lr)
        path = Path(theta, torch.empty_like(theta), state, pull, rates, kept)
        direct = self.plain() and pull is None and not self.clip and rates is None
        same = (type(self), repr(self), family, lr if rates is None else None)

        def body(cohort: Cohort, here: Path, batch: Batch, now: Now) -> None:
            if not (direct and cohort.lower(here.theta, batch, lr)):
                slope = cohort.grad(here.theta, batch, out=here.grad)
                if here.pull is not None:
                    add_pull(slope, here.pull, here.theta, family)
                if self.clip:
                    clip(slope, self.clip)
                self.step(here.theta, slope, here.state, lr if here.rates is None else here.rates)
            if here.kept is not None:
                collect(here.kept, here.theta, *now.rows)

        shown = None if watch is None else lambda number, here: watch(number, here.theta)
        cohort.descend(Work(body, path, slots, same), self.epochs, self.batch_size, shown)
        return Fit(theta, state if self.keep else memory, cohort.steps(self.epochs, self.batch_size))


class Path(NamedTuple):
    """Rows of SGD's or Adam's clients; all but `pull` and `rates` are changed in place."""

    theta: Tensor  # [C, P]
    grad: Tensor  # [C, P] scratch
    state: Any  # the solver's own
    pull: Tensor | None  # [C, 2, P] or as the family has it: the site, per example
    rates: Tensor | None  # [C] learning rates on the device, float64, for kernels that read them there
    kept: Tensor | None  # [C, most, P]


def _rates(theta: Tensor, lr: float) -> Tensor | None:
    """On a device with fused kernels: so a recorded step serves rounds of other learning rates, too."""
    if theta.is_cpu or not kernels.suit((theta,)):
        return None
    return torch.full((len(theta),), lr, dtype=torch.float64, device=theta.device)


def collect(kept: Tensor, theta: Tensor, slot: Tensor, share: Tensor) -> None:
    """Add share [c, 1] of theta [c, P] to one place of each row of kept [c, most, P]; slot [c] counts through all."""
    places = kept.view(-1, kept.shape[2])
    places.index_copy_(0, slot, places.index_select(0, slot).addcmul_(theta, share))


def add_pull(slope: Tensor, site: Tensor, theta: Tensor, family: Family) -> None:
    """Add the gradient of each row's site at theta [c, P] to slope [c, P]; the bits are the same either way."""
    if family is gaussian.diagonal and kernels.suit((site, theta, slope)):
        kernels.call("add_pull", *theta.shape, site, theta, slope)
    else:
        slope += family.energy_grad(site, theta)


def clip(grad: Tensor, most: float) -> None:
    """Shorten rows [c, P] whose norm is above `most`, in place."""
    grad *= (most / grad.norm(dim=1, keepdim=True).clamp_min(1e-12)).clamp_max(1.0)


def _per_example(site: Tensor, cohort: Cohort, family: Family) -> Tensor:
    """The site's energy divided by num_examples, one row per client."""
    axes = 1 if family is gaussian.isotropic else 2  # of one factor
    return site / cohort.num_examples.view(-1, *[1] * axes)
