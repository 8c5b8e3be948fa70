"""Laplace's approximation: the minimiser of f_k + energy(cavity), then the curvature of the client's own data there.

    theta     = argmin f_k + energy(cavity)                        by another solver, local.point
    precision = (H_k(theta) + cavity precision)/entropy_weight     in the family of the posterior

With curvature=none the precision stays as it was at the start: Gaussians of a fixed covariance, which with precision
1 turn a method on natural parameters into its point version (the delta approximation).
"""

from dataclasses import field, fields
from typing import Any

from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.clients.curvature import CURVATURES, curvature
from fedddp.core import registry
from fedddp.core.check import check, check_count, hint
from fedddp.core.gaussian import Family, as_diagonal, diagonal, isotropic
from fedddp.core.settings import kinds, settled
from fedddp.core.task import Task
from fedddp.rounds.iterative import Descent, Iterative
from fedddp.rounds.solver import PosteriorFit, PosteriorSolver

POINTS = ("adam", "sgd")


class Solver(Iterative, PosteriorSolver):
    lr: float = 0.001
    point: str = "adam"  # the solver of the point optimum: adam or sgd
    args: dict[str, Any] = field(default_factory=dict)  # settings of the point solver's own, beside those here
    curvature: str = "ggn"  # ggn, or exact (the Hessian, for small models), or none: the prior's precision alone
    samples: int = 0  # random signs for each example in a diagonal GGN, up to 100,000; 0: exact

    def __post_init__(self) -> None:
        super().__post_init__()
        kinds = (*CURVATURES, "none")
        check("local.point", self.point, self.point in POINTS, " or ".join(POINTS))
        check("local.curvature", self.curvature, self.curvature in kinds, " or ".join(kinds))
        check_count("local.samples", self.samples, least=0, most=100_000)
        self._solver()  # so that a mistake in args shows at once

    def _solver(self) -> Descent:
        shared = {own.name: getattr(self, own.name) for own in fields(Iterative)}
        point = registry.find("local", self.point)
        declared = kinds(point)
        for key in self.args:
            if key not in declared:
                raise ValueError(f"local.args.{key}: not a setting of {self.point}; {hint(key, declared)}")
        own = {key: settled(f"local.args.{key}", declared[key], value) for key, value in self.args.items()}
        made: Descent = point(**{**shared, **own})
        return made

    def memory(self, task: Task, count: int) -> Any:
        return self._solver().memory(task, count)

    def fit(
        self, cohort: Cohort, cavity: Tensor, entropy_weight: float, start: Tensor, memory: Any, family: Family
    ) -> PosteriorFit:
        site, site_family = cavity, family
        if family is isotropic:
            site, site_family = as_diagonal(cavity), diagonal
        found = self._solver().minimise(cohort, family.mean(start), memory, site, site_family)
        if self.curvature == "none":
            precision = family.precision(start)
        else:
            own = curvature(cohort, found.theta, family, self.curvature, self.samples)
            precision = (own + family.precision(cavity)) / entropy_weight
        return PosteriorFit(family.natural(found.theta, precision), found.memory, found.steps)
