"""Iterate-averaged stochastic gradients (Mandt et al. 2017): posterior samples from the path of SGD (FedPA, Alg. 4).

A sample is the mean of `steps_per_sample` iterates in a row. Samples fill a client's path from its end backwards, and
what lies before the first, at least `burn_in` steps, is burn-in; so a client has as many samples as its own number of
steps allows. A path too short for one sample gives its last iterate, as federated averaging does.
"""

from typing import Any

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core import gaussian
from fedddp.core.check import check
from fedddp.core.gaussian import Family
from fedddp.local import sgd
from fedddp.rounds.solver import Fit, Samples, SamplingSolver


class Solver(sgd.Solver, SamplingSolver):
    burn_in: int = 0  # fewest steps before a client's first sample, at least 0
    steps_per_sample: int = 0  # steps that are averaged into a sample; 0: an epoch, which is as good as independent
    samples: int = 0  # most samples of a client; 0: as many as its steps allow

    def __post_init__(self) -> None:
        super().__post_init__()
        check("local.burn_in", self.burn_in, self.burn_in >= 0, "at least 0")
        check("local.steps_per_sample", self.steps_per_sample, self.steps_per_sample >= 0, "0 for an epoch, or more")
        check("local.samples", self.samples, self.samples >= 0, "0 for as many as there are, or more")

    def sample(
        self,
        cohort: Cohort,
        start: Tensor,
        memory: Any,
        site: Tensor | None = None,
        family: Family = gaussian.diagonal,
        temperature: float = 1.0,
    ) -> tuple[Fit, Samples]:
        """Run SGD on f_k + energy(site) from `start` and average its path into samples."""
        first, length, count = self._slots(cohort)
        kept = start.new_zeros(len(cohort), int(count.max()), start.shape[-1])
        step = torch.arange(int(cohort.steps(self.epochs, self.batch_size).max())).unsqueeze(1)  # [steps, 1]
        own = ((step - first) // length).clamp(torch.zeros_like(count), count - 1)  # no matter once a client is done
        slot = own + torch.arange(len(cohort)) * kept.shape[1]
        share = self._share(step - first, length).to(start.dtype).unsqueeze(2)
        slots, state = (cohort.send(slot), cohort.send(share)), self._state(cohort, start, temperature)
        return self._descend(cohort, start, memory, site, family, None, kept, slots, state), Samples(kept, count)

    def _share(self, step: Tensor, length: Tensor) -> Tensor:
        """[steps, C] of a step's iterate in its sample; steps are counted from the first that is sampled."""
        return torch.where(step >= 0, 1 / length.double(), 0)

    def _state(self, cohort: Cohort, start: Tensor, temperature: float) -> Any:
        """What the path begins with; None: as SGD's does."""
        return None

    def _slots(self, cohort: Cohort) -> tuple[Tensor, Tensor, Tensor]:
        """For each client: the first step that is sampled, the steps of a sample, and the number of samples."""
        steps = cohort.steps(self.epochs, self.batch_size)
        length = torch.full_like(steps, self.steps_per_sample) if self.steps_per_sample else steps // self.epochs
        count = (steps - self.burn_in).clamp_min(0) // length
        if self.samples:
            count = count.clamp_max(self.samples)
        length, count = torch.where(count > 0, length, 1), count.clamp_min(1)
        return steps - count * length, length, count
