"""IVON with any diagonal Gaussian as prior and both multipliers ("Federated ADMM from Bayesian Duality", Alg. 2).

With effective sample size ess = N_k/entropy_weight and (c, C) = (shift, precision) of cavity/entropy_weight,

    theta = m + z/√s,    z ~ N(0, 1),    ĝ = gradient of the batch's mean loss at theta
    ĥ  = ĝ z √s                                 (Price's theorem, from reparametrisation; or ess ĝ²)
    g <- β1 g + (1-β1) ĝ
    s <- s (1 + x + ½x²),    x = (1-β2) (ess ĥ + C - s)/s
    m <- m - lr (ess g/(1-β1ᵗ) + C m - c)/s

and the posterior is N(m, 1/s). Alg. 2 has s = ess (h + δ) with its prior's δ = s̄/ess, and hands the multipliers (v, u)
to the lines for ĥ and m; as C = s̄ - u/rho and c = s̄ m̄ - v/rho these are the same numbers, and the cavity is all that is
needed. s stays positive whatever the gradients, even where the cavity's precision is negative.

A fit starts at the precision of `start`, which is h = 0 in Alg. 2, plus ess·hess_init in the first round (as the
published settings do) or in every round (as Alg. 2 prints).
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedddp.cohort import Batch, Cohort, Noise
from fedddp.gaussian import Family, diagonal
from fedddp.local import Nothing, PosteriorFit, Settings, check, clip
from fedddp.task import Task

APPROXIMATIONS = ("price", "gradsq")


class Momentum(NamedTuple):
    grad: Tensor  # [C, P]
    taken: Tensor  # [C] steps so far


class State(NamedTuple):
    """The rows [c, ...] of the clients still at work; everything is updated in place."""

    mean: Tensor  # m
    precision: Tensor  # s
    shift: Tensor  # -c
    pull: Tensor  # C
    momentum: Tensor  # g
    taken: Tensor
    ess: Tensor  # [c, 1]
    noise: Tensor  # scratch
    grad: Tensor
    theta: Tensor


@dataclass
class Solver(Settings):
    lr: float = 0.01
    keep: bool = True  # momentum and step counter stay with the client
    beta1: float = 0.9
    beta2: float = 0.9999
    hess_init: float = 0.1  # curvature of one example's loss to start from
    hess_restart: bool = False  # start from hess_init in every round, not only in the first
    samples: int = 1  # Monte-Carlo samples in each step
    hess_approx: str = "price"  # or gradsq: the squared gradient
    rescale_lr: bool = False  # multiply lr by hess_init + the cavity's (mean) precision per example

    def __post_init__(self) -> None:
        super().__post_init__()
        check("local.beta1", self.beta1, 0 <= self.beta1 < 1, "in [0, 1)")
        check("local.beta2", self.beta2, 0 <= self.beta2 < 1, "in [0, 1)")
        check("local.hess_init", self.hess_init, self.hess_init >= 0, "at least 0")
        check("local.samples", self.samples, self.samples >= 1, "at least 1")
        check("local.hess_approx", self.hess_approx, self.hess_approx in APPROXIMATIONS, " or ".join(APPROXIMATIONS))

    def blank(self, rows: int, task: Task) -> Momentum:
        zeros = torch.zeros(rows, task.layout.numel, dtype=task.dtype, device=task.device)
        return Momentum(zeros, zeros.new_zeros(rows))

    def memory(self, task: Task, count: int) -> Momentum | Nothing:
        return self.blank(count, task) if self.keep else Nothing()

    def refuse(self, family: Family) -> None:
        if family is not diagonal:
            raise ValueError(f"local.name=ivon: fits diagonal Gaussians; for {family.name} ones use von or laplace")

    def fit(
        self, cohort: Cohort, cavity: Tensor, entropy_weight: float, start: Tensor, memory: Any, family: Family
    ) -> PosteriorFit:
        self.refuse(family)
        momentum = memory if self.keep else self.blank(len(cohort), cohort.task)
        state, noise = self._begin(cohort, cavity, entropy_weight, start, momentum), cohort.noise()
        lr = self.rate(cohort)
        scale = lr * (self.hess_init + state.pull.mean(1, keepdim=True) / state.ess) if self.rescale_lr else None
        for batch in cohort.batches(self.epochs, self.batch_size):
            rows = len(batch.inputs)
            here = State(*(leaf[:rows] for leaf in state))
            self._estimate(here, cohort, batch, noise)
            self._step(here, lr, None if scale is None else scale[:rows])
        lam = torch.stack([state.precision * state.mean, state.precision], dim=-2)
        return PosteriorFit(lam, momentum if self.keep else memory, cohort.steps(self.epochs, self.batch_size))

    def _begin(self, cohort: Cohort, cavity: Tensor, weight: float, start: Tensor, momentum: Momentum) -> State:
        ess = cohort.num_examples.unsqueeze(1) / weight
        first = self.hess_init if self.hess_restart or cohort.round == 0 else 0.0
        precision = diagonal.precision(start) + first * ess
        mean = diagonal.mean(start).expand(len(cohort), -1).clone()
        shift, pull = diagonal.shift(cavity) / -weight, diagonal.precision(cavity) / weight
        scratch = torch.empty(3, *mean.shape, dtype=mean.dtype, device=mean.device)
        return State(mean, precision, shift, pull, *momentum, ess, *scratch)

    def _estimate(self, state: State, cohort: Cohort, batch: Batch, noise: Noise) -> None:
        """Into scratch: grad <- ĝ and noise <- ĥ/s, both means over samples."""
        self._sample(state, cohort, batch, noise)
        if self.samples > 1:
            grad, curvature = state.grad.clone(), state.noise.clone()
            for _ in range(self.samples - 1):
                self._sample(state, cohort, batch, noise)
                grad += state.grad
                curvature += state.noise
            torch.div(grad, self.samples, out=state.grad)
            torch.div(curvature, self.samples, out=state.noise)

    def _sample(self, state: State, cohort: Cohort, batch: Batch, noise: Noise) -> None:
        torch.sqrt(state.precision, out=state.theta)
        noise.fill(state.noise).div_(state.theta)
        torch.add(state.mean, state.noise, out=state.theta)
        grad = cohort.grad(state.theta, batch, out=state.grad)
        if self.clip:
            clip(grad, self.clip)
        if self.hess_approx == "price":
            state.noise.mul_(grad)
        else:
            torch.mul(grad, grad, out=state.noise).mul_(state.ess).div_(state.precision)

    def _step(self, state: State, lr: float, scale: Tensor | None) -> None:
        rate = 1 - self.beta2
        state.taken.add_(1)
        state.momentum.lerp_(state.grad, 1 - self.beta1)
        x = state.noise.mul_(rate * state.ess).sub_(rate).addcdiv_(state.pull, state.precision, value=rate)
        growth = torch.addcmul(x, x, x, value=0.5, out=state.grad)
        state.precision.addcmul_(state.precision, growth)
        debiased = state.ess / (1 - self.beta1**state.taken).unsqueeze(1)
        slope = torch.addcmul(state.shift, state.pull, state.mean, out=state.grad)
        slope.addcmul_(state.momentum, debiased)
        if scale is None:
            state.mean.addcdiv_(slope, state.precision, value=-lr)
        else:
            state.mean.sub_(slope.div_(state.precision).mul_(scale))
