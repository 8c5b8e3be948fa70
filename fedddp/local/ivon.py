"""IVON with any diagonal Gaussian as prior and both multipliers ("Federated ADMM from Bayesian Duality", Alg. 2).

With effective sample size ess = N_k/entropy_weight and (c, C) = (shift, precision) of cavity/entropy_weight,

    theta = m + z√v,    z ~ N(0, 1),    ĝ = gradient of the batch's mean loss at theta
    ĥ  = ĝ z/√v                                 (Price's theorem, from reparametrisation; or ess ĝ²)
    g <- β1 g + (1-β1) ĝ
    v <- v / (1 + x + ½x²),    x = (1-β2) (ess ĥ v + C v - 1)
    m <- m - lr v (ess g/(1-β1ᵗ) + C m - c)

and the posterior is N(m, v). Alg. 2 has 1/v = ess (h + δ) with its prior's δ = s̄/ess, and hands the multipliers (v, u)
to the lines for ĥ and m; as C = s̄ - u/rho and c = s̄ m̄ - v/rho these are the same numbers, and the cavity is all that is
needed. v stays positive whatever the gradients, even where the cavity's precision is negative.

A fit starts at the precision of `start`, which is h = 0 in Alg. 2, plus ess·hess_init in the first round (as the
published settings do) or in every round (as Alg. 2 prints).
"""

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Batch, Cohort
from fedddp.clients.graphs import Now, Work
from fedddp.clients.noise import NOISES, Normal, Quantile
from fedddp.core import kernels
from fedddp.core.check import check
from fedddp.core.gaussian import Family, diagonal
from fedddp.core.task import Task
from fedddp.rounds.iterative import Iterative, clip
from fedddp.rounds.solver import Nothing, PosteriorFit, PosteriorSolver

APPROXIMATIONS = ("price", "gradsq")


class Momentum(NamedTuple):
    grad: Tensor  # [C, P] running mean of gradients
    taken: Tensor  # [C] steps so far


class State(NamedTuple):
    """The rows [c, ...] of the clients still at work; everything is updated in place."""

    mean: Tensor  # m
    variance: Tensor  # v
    offset: Tensor  # -c
    pull: Tensor  # C
    momentum: Tensor  # g
    ess: Tensor  # [c, 1]
    curve: Tensor  # [c, 1] (1-β2) ess
    lr: Tensor  # [c, 1]
    noise: Tensor  # scratch
    grad: Tensor
    theta: Tensor
    keys: Tensor  # [c] of the noise


class Solver(Iterative, PosteriorSolver):
    families: ClassVar[tuple[str, ...]] = ("diagonal",)
    lr: float = 0.01
    keep: bool = True  # whether momentum and step counter stay with the client between rounds
    beta1: float = 0.9  # how slowly the mean of the gradients forgets, in [0, 1)
    beta2: float = 0.9999  # how slowly the estimate of the curvature forgets, in [0, 1)
    hess_init: float = 0.1  # curvature of one example's loss to start from, at least 0
    hess_restart: bool = False  # whether to start from hess_init in every round, not only in the first
    samples: int = 1  # Monte-Carlo samples in each step, at least 1; each costs a gradient
    hess_approx: str = "price"  # estimate of the curvature: price (Price's theorem), or gradsq: the squared gradient
    noise: str = "quantile"  # how normal numbers are drawn: quantile, or normal: slower, and as ivon-opt draws them
    rescale_lr: bool = False  # whether to multiply lr by hess_init + the cavity's (mean) precision per example

    def __post_init__(self) -> None:
        super().__post_init__()
        check("local.beta1", self.beta1, 0 <= self.beta1 < 1, "in [0, 1)")
        check("local.beta2", self.beta2, 0 <= self.beta2 < 1, "in [0, 1)")
        check("local.hess_init", self.hess_init, self.hess_init >= 0, "at least 0")
        check("local.samples", self.samples, self.samples >= 1, "at least 1")
        check("local.hess_approx", self.hess_approx, self.hess_approx in APPROXIMATIONS, " or ".join(APPROXIMATIONS))
        check("local.noise", self.noise, self.noise in NOISES, " or ".join(NOISES))

    def gradients(self) -> int:
        return self.samples

    def _blank(self, rows: int, task: Task) -> Momentum:
        zeros = torch.zeros(rows, task.layout.numel, dtype=task.dtype, device=task.device)
        return Momentum(zeros, zeros.new_zeros(rows))

    def memory(self, task: Task, count: int) -> Momentum | Nothing:
        return self._blank(count, task) if self.keep else Nothing()

    def fit(
        self, cohort: Cohort, cavity: Tensor, entropy_weight: float, start: Tensor, memory: Any, family: Family
    ) -> PosteriorFit:
        assert family is diagonal  # as `families` says
        momentum = memory if self.keep else self._blank(len(cohort), cohort.task)
        offset, pull = diagonal.shift(cavity) / -entropy_weight, diagonal.precision(cavity) / entropy_weight
        del cavity  # nobody else's: a quarter of what a fit would hold
        steps = cohort.steps(self.epochs, self.batch_size)
        state = self._begin(cohort, offset, pull, entropy_weight, start, momentum)
        mean, variance = self._descend(cohort, state, self._debiased(state, momentum, int(steps.max())))
        momentum.taken.add_(steps.to(momentum.taken))
        lam = diagonal.natural(mean, variance.reciprocal_())
        return PosteriorFit(lam, momentum if self.keep else memory, steps)

    def _debiased(self, state: State, momentum: Momentum, steps: int) -> Tensor:
        """[steps, C, 1] ess/(1-β1ᵗ) of all steps at once: each would be five kernels on a few numbers."""
        number = torch.arange(1, steps + 1, device=state.ess.device, dtype=momentum.taken.dtype)
        return state.ess / (1 - self.beta1 ** (momentum.taken + number.unsqueeze(1))).unsqueeze(2)

    def _descend(self, cohort: Cohort, state: State, debiased: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and variance [C, P] after the epochs."""
        normal = self._normal(cohort)

        def body(cohort: Cohort, here: State, batch: Batch, now: Now) -> None:
            factor = self._estimate(here, cohort, batch, self._noises(here, now.number, normal))
            self._step(here, factor, now.rows[0])

        same = None if normal is not None else (type(self), repr(self))  # a generator's next numbers are no recording's
        cohort.descend(Work(body, state, (debiased,), same), self.epochs, self.batch_size)
        return state.mean, state.variance

    def _begin(
        self, cohort: Cohort, offset: Tensor, pull: Tensor, weight: float, start: Tensor, momentum: Momentum
    ) -> State:
        ess = cohort.num_examples.unsqueeze(1) / weight
        first = self.hess_init if self.hess_restart or cohort.round == 0 else 0.0
        variance = (diagonal.precision(start) + first * ess).reciprocal_()
        mean = diagonal.mean(start).expand(len(cohort), -1).clone()
        lr = torch.full_like(ess, self.rate(cohort))
        if self.rescale_lr:
            lr *= self.hess_init + pull.mean(1, keepdim=True) / ess
        keys = cohort.send(torch.tensor(cohort.keys("noise")))
        noise, grad, theta = (torch.empty_like(mean) for _ in range(3))  # not as one, which would not fit in one place
        rows = (mean, variance, offset, pull, momentum.grad)
        return State(*rows, ess, (1 - self.beta2) * ess, lr, noise, grad, theta, keys)

    def _normal(self, cohort: Cohort) -> Normal | None:
        if self.noise != "normal":
            return None
        if cohort.task.device.type != "cpu":
            raise ValueError(
                "local.noise=normal: is drawn by the host, in every step; on a GPU use local.noise=quantile"
            )
        return cohort.noise()

    def _noises(self, state: State, number: int | Tensor, normal: Normal | None) -> list[Quantile | Normal]:
        """What a step draws from, one for each sample."""
        if normal is not None:
            return [normal] * self.samples
        if self.samples == 1:
            return [Quantile(state.keys, number)]
        return [Quantile(state.keys, number * self.samples + sample) for sample in range(self.samples)]

    def _estimate(self, state: State, cohort: Cohort, batch: Batch, noises: list[Quantile | Normal]) -> Tensor:
        """Into scratch: grad <- ĝ, and noise so that noise times the tensor returned is ĥv; means over samples."""
        self._sample(state, cohort, batch, noises[0])
        if self.samples == 1:
            return state.grad
        grad, curvature = state.grad.clone(), state.noise * state.grad
        for noise in noises[1:]:
            self._sample(state, cohort, batch, noise)
            grad += state.grad
            curvature += state.noise.mul_(state.grad)
        torch.div(grad, self.samples, out=state.grad)
        torch.div(curvature, self.samples, out=state.noise)
        return state.theta.fill_(1)

    def _sample(self, state: State, cohort: Cohort, batch: Batch, noise: Quantile | Normal) -> None:
        noise.perturb(state.mean, state.variance, state.noise, state.theta)
        grad = cohort.grad(state.theta, batch, out=state.grad)
        if self.clip:
            clip(grad, self.clip)
        if self.hess_approx == "gradsq":
            torch.mul(grad, state.ess, out=state.noise).mul_(state.variance)

    def _step(self, state: State, factor: Tensor, debiased: Tensor) -> None:
        rate = 1 - self.beta2
        rows = (state.mean, state.variance, state.momentum, state.offset, state.pull, state.noise, factor, state.grad)
        if kernels.suit(rows):
            each = (state.curve, debiased, state.lr, self.beta1, 1 - self.beta1, rate)
            kernels.call("ivon_step", *state.mean.shape, *rows, *each)
        else:
            self._by_tensors(state, factor, debiased)

    def _by_tensors(self, state: State, factor: Tensor, debiased: Tensor) -> None:
        """As ivon_step in kernels.c, one rounded operation after the other, so that the bits are the same."""
        rate = 1 - self.beta2
        x = state.noise.mul_(factor).mul_(state.curve).sub_(rate)
        x += torch.mul(state.pull, state.variance, out=state.theta).mul_(rate)
        state.variance.div_(torch.mul(x, x, out=state.theta).mul_(0.5).add_(x).add_(1))
        state.momentum.mul_(self.beta1).add_(torch.mul(state.grad, 1 - self.beta1, out=state.theta))
        slope = torch.mul(state.pull, state.mean, out=state.grad).add_(state.offset)
        slope += torch.mul(state.momentum, debiased, out=state.theta)
        state.mean.sub_(slope.mul_(state.variance).mul_(state.lr))
