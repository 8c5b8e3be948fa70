"""Stochastic gradient Langevin dynamics (Welling & Teh 2011): samples of a client's posterior, with noise of its own.

    theta <- theta - lr (∇loss + energy gradient/N_k) + √(2 lr temperature/N_k) z,    z ~ N(0, 1)

has exp(-(f_k + energy(site))/temperature) as its stationary density, up to what a step of this length makes of it. A
sample is every `steps_per_sample`-th iterate, counted from the end of the path backwards; what lies before the first,
at least `burn_in` steps, is burn-in. As a point solver, without a method that asks for samples, it is SGD.

With per_epoch a client's step is lr divided by its batches in an epoch: clients of all sizes then diffuse for the same
time in an epoch, which is what an average over clients needs to stay a diffusion.
"""

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.clients.noise import Quantile
from fedddp.core.check import check
from fedddp.local import iasg
from fedddp.local.sgd import Momentum
from fedddp.rounds.solver import Nothing


class Diffusion(NamedTuple):
    """The rows of the clients still at work; `drawn` and `noise` are changed in place."""

    rate: Tensor  # [C, 1] each client's step
    variance: Tensor  # [C, P] of a step's noise
    noise: Tensor  # [C, P] scratch
    keys: Tensor  # [C] of the noise
    drawn: Tensor  # [C] steps so far, the same for all rows at work


class Solver(iasg.Solver):
    tempers: ClassVar[bool] = True
    per_epoch: bool = False  # lr is an epoch's, shared out evenly over a client's batches, rather than a step's

    def __post_init__(self) -> None:
        super().__post_init__()
        check("local.momentum", self.momentum, self.momentum == 0, "0: Langevin steps have none")
        check("local.weight_decay", self.weight_decay, self.weight_decay == 0, "0: a prior is the method's to add")

    def _share(self, step: Tensor, length: Tensor) -> Tensor:
        last = (step >= 0) & (step % length == length - 1)
        return last.double()

    def _state(self, cohort: Cohort, start: Tensor, temperature: float) -> Diffusion:
        count = cohort.num_examples.unsqueeze(1)
        rate = torch.full_like(count, self.rate(cohort))
        if self.per_epoch:
            rate /= cohort.send(cohort.steps(1, self.batch_size).unsqueeze(1)).to(rate)
        variance = (2 * temperature * rate / count).expand(-1, start.shape[-1]).contiguous()
        keys = cohort.send(torch.tensor(cohort.keys("langevin"), dtype=torch.int64))
        return Diffusion(rate, variance, torch.empty_like(variance), keys, torch.zeros_like(keys))

    def step(self, theta: Tensor, grad: Tensor, state: Diffusion | Momentum | Nothing, lr: float | Tensor) -> None:
        """Down the gradient, then noise."""
        if not isinstance(state, Diffusion):
            super().step(theta, grad, state, lr)
            return
        theta.sub_(grad.mul_(state.rate))
        Quantile(state.keys, state.drawn[:1]).perturb(theta, state.variance, state.noise, theta)
        state.drawn.add_(1)
