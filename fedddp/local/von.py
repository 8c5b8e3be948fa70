"""Variational online Newton (Khan & Rue 2023, Eq. 12) for small models: natural-gradient steps on all of the data.

    lam <- (1 - lr) lam + lr (cavity + site)/entropy_weight,    site = (E_q[H_k] m - E_q[∇f_k], E_q[H_k])

which is precision <- (1 - lr) precision + lr (E_q[H_k] + C)/w and m <- m - lr precision⁻¹ (E_q[∇f_k] + C m - c)/w. On
quadratic losses one step with lr=1 is exact. Expectations are at the mean (samples=0, exact for quadratics) or over
pairs of samples m ± z σ, whose z are drawn once for each fit: the objective is then a fixed function, and steps end
when nothing moves any more. A client's step that would leave the posterior without a positive precision is halved,
as in any line search: early steps may see a curvature that does not yet make up for a negative cavity.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedddp.cohort import Cohort
from fedddp.curvature import CURVATURES, curvature
from fedddp.gaussian import Family
from fedddp.local import Nothing, PosteriorFit, Settings, check
from fedddp.task import Task

HALVINGS = 40


@dataclass
class Solver(Settings):
    lr: float = 1.0
    epochs: int = 100  # most steps; each looks at all data
    curvature: str = "ggn"  # or exact: the Hessian
    samples: int = 0  # pairs of samples; 0: at the mean
    tolerance: float = 1e-10  # relative move of the natural parameters at which to stop

    def __post_init__(self) -> None:
        super().__post_init__()
        check("local.lr", self.lr, self.lr <= 1, "in (0, 1]")
        check("local.curvature", self.curvature, self.curvature in CURVATURES, " or ".join(CURVATURES))
        check("local.samples", self.samples, self.samples >= 0, "0 for the mean, or a number of pairs")

    def memory(self, task: Task, count: int) -> Nothing:
        return Nothing()

    def fit(
        self, cohort: Cohort, cavity: Tensor, entropy_weight: float, start: Tensor, memory: Any, family: Family
    ) -> PosteriorFit:
        lam, noise, lr = start.expand_as(cavity), self._noise(cohort), self.rate(cohort)
        steps = 0
        while steps < self.epochs:
            steps += 1
            mean = family.mean(lam)
            slope, hessian = self._expected(cohort, lam, noise, family)
            site = family.natural(mean, hessian) + family.linear(slope)
            moved = _towards(lam, (cavity + site) / entropy_weight, lr, family)
            done = bool((moved - lam).norm() <= self.tolerance * moved.norm())
            lam = moved
            if done:
                break
        return PosteriorFit(lam, memory, torch.full((len(cohort),), float(steps)))

    def _noise(self, cohort: Cohort) -> Tensor:
        """[2 samples, C, P], in pairs."""
        task, stream = cohort.task, cohort.noise()
        drawn = torch.zeros(self.samples, len(cohort), task.layout.numel, dtype=task.dtype, device=task.device)
        for sample in drawn:
            stream.fill(sample)
        return torch.cat([drawn, -drawn])

    def _expected(self, cohort: Cohort, lam: Tensor, noise: Tensor, family: Family) -> tuple[Tensor, Tensor]:
        """E_q[∇f_k] [C, P] and E_q[H_k]."""
        points = [family.sample(lam, z) for z in noise] or [family.mean(lam)]
        slopes = [cohort.full_grad(theta) for theta in points]
        hessians = [curvature(cohort, theta, family, self.curvature) for theta in points]
        return torch.stack(slopes).mean(0), torch.stack(hessians).mean(0)


def _towards(lam: Tensor, target: Tensor, lr: float, family: Family) -> Tensor:
    """lam + rate (target - lam), rate the largest of lr, lr/2, lr/4, ... that keeps a row proper."""
    rate = lam.new_full((len(lam), *[1] * (lam.dim() - 1)), lr)
    for _ in range(HALVINGS):
        moved = torch.lerp(lam, target, rate)
        bad = family.improper(moved) > 0
        if not bool(bad.any()):
            break
        rate[bad] /= 2
    return moved
