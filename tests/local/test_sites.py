"""Point solvers with a Gaussian factor beside the loss: one for all clients or one for each, of any family."""

import pytest
import torch

from fedddp.clients.cohort import Cohort
from fedddp.clients.oracle import Oracle
from fedddp.core import gaussian
from fedddp.local import sgd
from fedddp.rounds.solver import Nothing
from tests import toy


def minimise(clients, site, family):
    task = toy.task()
    cohort = Cohort(clients, 0, task, Oracle(task.module, task.layout, task.objective))
    solver = sgd.Solver(lr=0.2, epochs=200, batch_size=100)
    return solver.minimise(cohort, task.initial, Nothing(), site, family).theta


@pytest.mark.parametrize("clients", [(2,), (3, 1), (4, 2, 0)])
@pytest.mark.parametrize("family", gaussian.FAMILIES.values(), ids=gaussian.FAMILIES)
def test_the_minimum_of_loss_and_factor_is_reached(clients, family):
    """theta = (X'X + s)⁻¹ (X'y + s m) for each client; rows are fewer than a factor has axes, as many, and more."""
    means = torch.arange(len(clients) * toy.D, dtype=torch.float64).view(len(clients), toy.D) / 7
    each = family.natural(means, 5.0)
    for site in (each, each[0]):
        found = minimise(clients, site, family)
        for row, client in enumerate(clients):
            hessian, shift = toy.gram(toy.task(), client)
            mean = means[row] if site is each else means[0]
            truth = torch.linalg.solve(hessian + 5.0 * torch.eye(toy.D, dtype=torch.float64), shift + 5.0 * mean)
            torch.testing.assert_close(found[row], truth, rtol=1e-7, atol=1e-7)
