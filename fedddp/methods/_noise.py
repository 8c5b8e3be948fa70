"""Gaussian noise on what a client sends ("Hessian-weighted aggregation (HWA)", section 5, Fig. 11)."""

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort


def perturb(value: Tensor, deviation: float, cohort: Cohort, purpose: str) -> Tensor:
    """value [C, ...] with noise of each client's own stream; `purpose` keeps the fields of a message independent."""
    if not deviation:
        return value
    return value + deviation * cohort.noise(f"{purpose} perturbation").fill(torch.empty_like(value))
