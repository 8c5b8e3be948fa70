"""Variational online Newton (Khan & Rue 2023, Eq. 12) for small models: natural-gradient steps on all of the data.

    lam <- (1 - lr) lam + lr (cavity + site)/entropy_weight,    site = (E_q[H_k] m - E_q[∇f_k], E_q[H_k])

which is precision <- (1 - lr) precision + lr (E_q[H_k] + C)/w and m <- m - lr precision⁻¹ (E_q[∇f_k] + C m - c)/w. On
quadratic losses one step with lr=1 is exact. Expectations are at the mean (samples=0, exact for quadratics) or over
pairs of samples m ± z σ, whose z are drawn once for each fit: the objective is then a fixed function, and steps end
when nothing moves any more. A client's step is halved, as in any line search, until the posterior has a positive
precision and the slope along the step is no steeper where it ends: a cavity with negative directions, as large duals
make it, has its minimum in a basin that a long step would leave for good.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.clients.curvature import CURVATURES, curvature
from fedddp.core.check import check, check_count
from fedddp.core.gaussian import Family
from fedddp.rounds.iterative import Iterative
from fedddp.rounds.solver import PosteriorFit, PosteriorSolver

HALVINGS = 40
SMALL = 1e-6  # a relative move of the mean that leaves no basin: its slopes are rounding errors before long


class Solver(Iterative, PosteriorSolver):
    waits: ClassVar[bool] = True  # the host decides how far to go
    lr: float = 1.0  # step of the natural-gradient descent, in (0, 1]; 1 is a Newton step
    epochs: int = 100  # most steps, at least 1; each looks at all of a client's data
    curvature: str = "ggn"  # ggn, or exact: the Hessian
    samples: int = 0  # pairs of samples in a step, up to 10,000; 0: the curvature at the mean
    tolerance: float = 1e-10  # relative move of the natural parameters at which to stop, at least 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check("local.lr", self.lr, self.lr <= 1, "in (0, 1]")
        check("local.curvature", self.curvature, self.curvature in CURVATURES, " or ".join(CURVATURES))
        check_count("local.samples", self.samples, least=0, most=10_000)
        check("local.tolerance", self.tolerance, self.tolerance >= 0, "at least 0")

    def passes(self) -> tuple[int, int]:
        """A step looks at everything, as a cohort goes through it."""
        return self.epochs, 1024

    def fit(
        self, cohort: Cohort, cavity: Tensor, entropy_weight: float, start: Tensor, memory: Any, family: Family
    ) -> PosteriorFit:
        lam, noise, lr = start.expand_as(cavity), self._noise(cohort), self.rate(cohort)
        slope, steps = self._slope(cohort, lam, noise, family), 0
        while steps < self.epochs:
            steps += 1
            hessian = self._hessian(cohort, lam, noise, family)
            site = family.natural(family.mean(lam), hessian) + family.linear(slope)
            target = (cavity + site) / entropy_weight
            rate = self._proper(lam, target, lr, family)
            for _ in range(HALVINGS):
                moved = torch.lerp(lam, target, rate)
                there = self._slope(cohort, moved, noise, family)
                steeper = self._steeper(lam, slope, moved, there, cavity, family)
                still = (moved - lam).norm() <= self.tolerance * moved.norm()
                again, done = torch.stack([steeper.any(), still]).tolist()  # in one go: a device is waited for
                if not again:
                    break
                rate = torch.where(steeper.view_as(rate), rate / 2, rate)
            lam, slope = moved, there
            if done:
                break
        return PosteriorFit(lam, memory, torch.full((len(cohort),), float(steps)))

    def _proper(self, lam: Tensor, target: Tensor, lr: float, family: Family) -> Tensor:
        """The largest of lr, lr/2, lr/4, ... that keeps a row of lam + rate (target - lam) proper; [C, 1, ...]."""
        rate = lam.new_full((len(lam), *[1] * (lam.dim() - 1)), lr)
        for _ in range(HALVINGS):
            bad = family.improper(torch.lerp(lam, target, rate)) > 0
            if not bool(bad.any()):
                break
            rate = torch.where(bad.view_as(rate), rate / 2, rate)
        return rate

    def _steeper(
        self, lam: Tensor, slope: Tensor, moved: Tensor, there: Tensor, cavity: Tensor, family: Family
    ) -> Tensor:
        """[C] whether the way from lam to moved is steeper at its end; small steps are not asked."""
        here, end = family.mean(lam), family.mean(moved)
        way = end - here
        before = ((slope + family.energy_grad(cavity, here)) * way).sum(1).abs()
        after = ((there + family.energy_grad(cavity, end)) * way).sum(1).abs()
        return (after > before) & (way.norm(dim=1) > SMALL * end.norm(dim=1))

    def _noise(self, cohort: Cohort) -> Tensor:
        """[2 samples, C, P], in pairs."""
        task, stream = cohort.task, cohort.noise()
        drawn = torch.zeros(self.samples, len(cohort), task.layout.numel, dtype=task.dtype, device=task.device)
        for sample in drawn:
            stream.fill(sample)
        return torch.cat([drawn, -drawn])

    def _slope(self, cohort: Cohort, lam: Tensor, noise: Tensor, family: Family) -> Tensor:
        """E_q[∇f_k]; [C, P]."""
        return torch.stack([cohort.full_grad(theta) for theta in _points(lam, noise, family)]).mean(0)

    def _hessian(self, cohort: Cohort, lam: Tensor, noise: Tensor, family: Family) -> Tensor:
        """E_q[H_k], as a precision of the family."""
        found = [curvature(cohort, theta, family, self.curvature) for theta in _points(lam, noise, family)]
        return torch.stack(found).mean(0)


def _points(lam: Tensor, noise: Tensor, family: Family) -> list[Tensor]:
    return [family.sample(lam, z) for z in noise] or [family.mean(lam)]
