"""The published IVON optimiser, the package ivon-opt (Shen et al. 2024): for a prior N(0, 1/delta) and nothing else.

The reference for variational learning without a federation. Its step counter, which the package's state_dict does not
hold, is kept with momentum and precision, and noise comes from the client's own stream.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core.gaussian import Family, diagonal
from fedddp.local import ivon
from fedddp.local.ivon import Momentum
from fedddp.rounds.solver import PosteriorFit


class Solver(ivon.Solver):
    any_cavity: ClassVar[bool] = False
    rescale_lr: bool = True  # whether to multiply lr by hess_init + the prior's precision, the package's default
    noise: str = "normal"  # normal: the package draws its own numbers

    def fit(
        self, cohort: Cohort, cavity: Tensor, entropy_weight: float, start: Tensor, memory: Any, family: Family
    ) -> PosteriorFit:
        """Rows are fitted one after the other; each has a prior of its own, the same for all coordinates."""
        assert family is diagonal  # as `families` says
        momentum = memory if self.keep else self._blank(len(cohort), cohort.task)
        rows = [self._fit(cohort, row, cavity[row], entropy_weight, start, momentum) for row in range(len(cohort))]
        return PosteriorFit(
            torch.stack(rows), momentum if self.keep else memory, cohort.steps(self.epochs, self.batch_size)
        )

    def _fit(self, cohort: Cohort, row: int, prior: Tensor, weight: float, start: Tensor, momentum: Momentum) -> Tensor:
        alone = cohort.part(torch.tensor([row]))
        optimiser = self._optimiser(alone, prior, weight, start, momentum, row)
        (group,) = optimiser.param_groups
        (theta,) = group["params"]
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(cohort.task.streams.key("noise", cohort.round, cohort.ids[row]))
            for batch in alone.batches(self.epochs, self.batch_size):
                group["lr"] = self.rate(cohort)
                for _ in range(self.samples):
                    with optimiser.sampled_params(train=True):
                        theta.grad = alone.grad(theta.detach().unsqueeze(0), batch)[0]
                optimiser.step()
        momentum.grad[row] = group["momentum"]
        momentum.taken[row] = optimiser.current_step
        return diagonal.natural(theta.detach(), group["ess"] * (group["hess"] + group["weight_decay"]))

    def _optimiser(
        self, cohort: Cohort, prior: Tensor, weight: float, start: Tensor, momentum: Momentum, row: int
    ) -> Any:
        """ivon-opt in the state that the client was left in."""
        from ivon import IVON

        precision = diagonal.precision(prior)
        if bool((precision != precision[0]).any()) or bool(diagonal.shift(prior).any()):
            raise ValueError("local.name=ivon_opt: takes a prior N(0, 1/delta) only; use local.name=ivon")
        ess = float(cohort.num_examples[0]) / weight
        decay = float(precision[0]) / weight / ess
        optimiser = IVON(
            [torch.nn.Parameter(diagonal.mean(start).clone())],
            lr=self.lr,
            ess=ess,
            hess_init=self.hess_init,
            beta1=self.beta1,
            beta2=self.beta2,
            weight_decay=decay,
            mc_samples=self.samples,
            hess_approx=self.hess_approx,
            rescale_lr=self.rescale_lr,
        )
        (group,) = optimiser.param_groups
        group["momentum"] = momentum.grad[row].clone()
        group["hess"] = diagonal.precision(start) / ess - decay
        if self.hess_restart or cohort.round == 0:
            group["hess"] = group["hess"] + self.hess_init
        optimiser.current_step = int(momentum.taken[row])
        return optimiser
