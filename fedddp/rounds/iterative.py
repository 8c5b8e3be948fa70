"""What solvers that go over their data in batches share: settings, a learning rate, and the loop of SGD and Adam."""

from abc import abstractmethod
from collections.abc import Callable
from math import cos, pi
from typing import Any

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
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

    lr: float = 0.1
    epochs: int = 1
    batch_size: int = 32
    clip: float = 0.0  # largest norm of a client's gradient; 0: no clipping
    schedule: str = "constant"  # of the learning rate over rounds: constant, cosine, linear
    decay: float = 1.0  # the learning rate's factor per round, beside the schedule
    keep: bool = False  # keep the optimiser's state between a client's rounds

    def __post_init__(self) -> None:
        check("local.lr", self.lr, self.lr > 0, "a number above 0")
        check_count("local.epochs", self.epochs)
        check_count("local.batch_size", self.batch_size)
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

    @abstractmethod
    def blank(self, rows: int, task: Task) -> Any:
        """The state of `rows` clients before their first step."""

    @abstractmethod
    def step(self, theta: Tensor, grad: Tensor, state: Any, lr: float) -> None:
        """One step on the rows [c, P], everything in place; `grad` may be overwritten."""

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
        theta = start.expand(len(cohort), -1).clone()
        state = type(memory)(*memory) if self.keep else self.blank(len(cohort), cohort.task)
        pull = None if site is None else _per_example(site, cohort, family)
        grad, lr = torch.empty_like(theta), self.rate(cohort)
        for number, batch in enumerate(cohort.batches(self.epochs, self.batch_size)):
            rows = len(batch.inputs)
            here, slope = theta[:rows], cohort.grad(theta[:rows], batch, out=grad[:rows])
            if pull is not None:
                add_pull(slope, pull[:rows], here, family)
            if self.clip:
                clip(slope, self.clip)
            self.step(here, slope, type(state)(*(leaf[:rows] for leaf in state)), lr)
            if watch is not None:
                watch(number, here)
        return Fit(theta, state if self.keep else memory, cohort.steps(self.epochs, self.batch_size))


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
