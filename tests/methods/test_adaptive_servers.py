"""Servers that descend along the mean change: their recurrences written out, and what they reduce to."""

import numpy as np
import pytest
import torch

from fedddp.local import sgd
from fedddp.methods import fedadagrad, fedadam, fedavg, fedavgm, fedyogi
from tests import toy

LOCAL = sgd.Solver(lr=0.05, epochs=2, batch_size=5)


def path(method, exchange, rounds=6):
    """The server's parameters, and the mean change that it saw in each round."""
    task = toy.task()
    states = [s.theta for s in toy.iterate(toy.federation(method, LOCAL, task, exchange), rounds)]
    changes = []
    for number, theta in enumerate(states[:-1]):
        fed = toy.federation(fedavg.Method(), LOCAL, task, exchange)
        changes.append(theta - fed.round(fedavg.Server(theta), number)[0].theta)
    return np.stack([s.numpy() for s in states]), np.stack([c.numpy() for c in changes])


def test_without_momentum_and_with_step_one_the_server_averages(exchange):
    states, changes = path(fedavgm.Method(momentum=0.0), exchange)
    np.testing.assert_allclose(states[1:], states[:-1] - changes, rtol=1e-12)


def test_fedavgm_is_sgd_with_momentum(exchange):
    states, changes = path(fedavgm.Method(lr=0.3, momentum=0.8), exchange)
    theta = torch.tensor(states[0], requires_grad=True)
    optimiser = torch.optim.SGD([theta], lr=0.3, momentum=0.8)
    for state, change in zip(states[1:], changes, strict=True):
        theta.grad = torch.tensor(change)
        optimiser.step()
        np.testing.assert_allclose(theta.detach(), state, rtol=1e-12)


SECOND = {
    fedadam: lambda s, d: 0.9 * s + 0.1 * d**2,
    fedyogi: lambda s, d: s - 0.1 * d**2 * np.sign(s - d**2),
    fedadagrad: lambda s, d: s + d**2,
}


@pytest.mark.parametrize("module", SECOND, ids=lambda module: module.__name__.rpartition(".")[2])
def test_the_adaptive_rules(exchange, module):
    forgets = {} if module is fedadagrad else {"beta2": 0.9}
    states, changes = path(module.Method(lr=0.2, beta1=0.7, tau=0.01, **forgets), exchange)
    theta, first, second = states[0], 0.0, 0.01**2
    for state, change in zip(states[1:], changes, strict=True):
        first = 0.7 * first + 0.3 * change
        second = SECOND[module](second, change)
        theta = theta - 0.2 * first / (np.sqrt(second) + 0.01)
        np.testing.assert_allclose(theta, state, rtol=1e-11)
