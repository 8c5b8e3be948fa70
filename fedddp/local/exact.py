"""The exact answer where a client's loss is quadratic in the parameters: a linear model with squared error.

With A = H_k + C, the Hessian of f_k and the precision of the site or cavity, and from any theta_0,

    theta     = theta_0 - A⁻¹ (gradient of f_k + energy at theta_0)
    posterior   mean theta, precision A/entropy_weight: the whole of it (full), its diagonal (diagonal), or the mean of
                its diagonal (isotropic)

For a Gaussian with mean m and covariance V, E_q[f_k + energy] is the loss at m + ½ tr(A V), whence all three are the
optimum over their family. Of several minimisers theta is the nearest to theta_0 = start. For small models: A is P x P.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.clients.curvature import ggn_full
from fedddp.core import gaussian
from fedddp.core.gaussian import Family
from fedddp.rounds.solver import Fit, PointSolver, PosteriorFit, PosteriorSolver

WANTS = "local.name=exact: needs a loss quadratic in the parameters: model.name=logistic, model.loss=squared_error"
OTHERS = "choose local.name=adam or sgd for a point, laplace, von or ivon for a posterior"


class Optimum(NamedTuple):
    theta: Tensor  # [C, P]
    matrix: Tensor  # [C, P, P] A
    falls: Tensor  # [C] whether some direction leads down for ever: theta is no minimum then


class Solver(PointSolver, PosteriorSolver):
    def minimise(
        self,
        cohort: Cohort,
        start: Tensor,
        memory: Any,
        site: Tensor | None = None,
        family: Family = gaussian.diagonal,
        watch: Callable[[int, Tensor], None] | None = None,
    ) -> Fit:
        found = _optimum(cohort, start, site, family)
        _refuse_falling(found.falls)
        if watch is not None:
            watch(0, found.theta)
        return Fit(found.theta, memory, torch.ones_like(cohort.sizes))

    def fit(
        self, cohort: Cohort, cavity: Tensor, entropy_weight: float, start: Tensor, memory: Any, family: Family
    ) -> PosteriorFit:
        found = _optimum(cohort, family.mean(start), cavity, family)
        lam = family.natural(found.theta, _of_family(found.matrix / entropy_weight, family))
        _refuse_falling(found.falls & (family.improper(lam) == 0))  # what is improper, the method reports
        return PosteriorFit(lam, memory, torch.ones_like(cohort.sizes))


def _optimum(cohort: Cohort, start: Tensor, site: Tensor | None, family: Family) -> Optimum:
    """Where the gradient of f_k + energy(site) is 0; a site without rows is every client's."""
    if cohort.turn is not None:
        raise ValueError(f"local.name=exact: the method changes gradients on their way to the solver; {OTHERS}")
    start = start.expand(len(cohort), -1)

    def slope(theta: Tensor) -> Tensor:
        own = cohort.full_grad(theta)
        return own if site is None else own + family.energy_grad(site, theta)

    matrix = ggn_full(cohort, start)  # the Hessian, where the model is linear
    if site is not None:
        matrix = matrix + _as_matrix(family.precision(site), start.shape[-1], family)
    values, vectors = torch.linalg.eigh(matrix)
    none = values.abs().amax(1, keepdim=True) * start.shape[-1] * torch.finfo(start.dtype).eps
    inverse = torch.where(values.abs() > none, 1 / values, 0)  # directions that the loss does not feel stay as they are
    before = slope(start)
    theta = start - _times(vectors, inverse * _times(vectors.mT, before))
    _refuse_curved(slope(theta), before, _times(matrix, start))
    return Optimum(theta, matrix, (values < -none).any(1))


def _refuse_curved(after: Tensor, before: Tensor, rest: Tensor) -> None:
    """The gradient after the step must be 0, up to what rounding makes of the terms that cancel in it."""
    size = before.norm(dim=1) + rest.norm(dim=1)  # without `rest` a start at the optimum would leave nothing to compare
    left = after.norm(dim=1)
    bad = ~(left <= torch.finfo(after.dtype).eps ** 0.5 * size)  # NaN is bad, too
    if bool(bad.any()):
        share = float((left / size)[bad].max())
        raise ValueError(
            f"{WANTS}; at what would be the optimum the gradient is {share:.1g} of its size, not 0; {OTHERS}"
        )


def _refuse_falling(falls: Tensor) -> None:
    if bool(falls.any()):
        raise ValueError(
            "local.name=exact: the client's loss has no minimum, as its site takes away more precision than its data "
            "has; a smaller method.damping or a larger method.rho or method.delta helps"
        )


def _as_matrix(precision: Tensor, size: int, family: Family) -> Tensor:
    """A family's precision as [..., P, P]."""
    if family is gaussian.full:
        return precision
    return torch.diag_embed(precision.expand(*precision.shape[:-1], size))


def _of_family(matrix: Tensor, family: Family) -> Tensor:
    """The part of matrices [C, P, P] that is a family's precision."""
    if family is gaussian.full:
        return matrix
    diagonal = matrix.diagonal(dim1=1, dim2=2)
    return diagonal.mean(1, keepdim=True) if family is gaussian.isotropic else diagonal


def _times(matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1)
