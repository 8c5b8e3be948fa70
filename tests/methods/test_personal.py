"""Methods whose clients have models of their own: Ditto and pFedBayes, on linear regression in float64."""

from itertools import pairwise

import pytest
import torch

from fedddp.core import gaussian
from fedddp.local import exact, sgd
from fedddp.methods import ditto, fedavg, pfedbayes
from tests import toy
from tests.methods.test_barycentres import normal
from tests.methods.test_bayesian_duality import DELTA, close


def own(task, anchor, delta, scale):
    """argmin of each client's f_k + ½ delta |theta - anchor|² (sum), or of f_k/N_k + the same (mean)."""
    rows = []
    for client in range(toy.K):
        gram, shift = toy.gram(task, client)
        weight = delta * (int(task.num_examples[client]) if scale == "mean" else 1)
        rows.append(torch.linalg.solve(gram + weight * torch.eye(toy.D, dtype=torch.float64), shift + weight * anchor))
    return torch.stack(rows)


@pytest.mark.parametrize("scale", ["mean", "sum"])
@pytest.mark.parametrize("delta", [0.0, 0.3])
def test_ditto_holds_own_models_near_the_servers(exchange, delta, scale):
    """And leaves the server to federated averaging; without a penalty every client is alone."""
    task = toy.task()
    federation = toy.federation(ditto.Method(delta=delta, scale=scale), exact.Solver(), task, exchange)
    states = toy.iterate(federation, 2)
    plain = toy.iterate(toy.federation(fedavg.Method(), exact.Solver(), task, exchange), 2)
    for one, other in zip(states, plain, strict=True):
        assert torch.equal(one.theta, other.theta)
    close(federation.own_models(states[1]), own(task, states[1].theta, delta, scale))


def test_dittos_server_is_fedavgs_with_any_solver(exchange):
    task, local = toy.task(), sgd.Solver(lr=0.02, epochs=3, batch_size=4)
    runs = [toy.iterate(toy.federation(made, local, task, exchange), 3) for made in (ditto.Method(), fedavg.Method())]
    assert torch.equal(runs[0][-1].theta, runs[1][-1].theta)


@pytest.mark.parametrize("beta", [1.0, 0.4])
def test_pfedbayes_in_closed_form_and_its_objective_falls(exchange, beta):
    """Gaussian clients, full covariances: posteriors A_k/ζ + S around their mode, and the moments of their mixture."""
    task, zeta = toy.task(), 0.5
    method = pfedbayes.Method(covariance="full", delta=DELTA, zeta=zeta, beta=beta)
    federation = toy.federation(method, exact.Solver(), task, exchange)
    before, heights = method.init_server(task), []
    for number in range(5):
        after = federation.round(before, number)[0]
        old, own, height = normal(gaussian.full, before.lam), [], 0.0
        for client in range(toy.K):
            gram, shift = toy.gram(task, client)
            precision = gram / zeta + old.precision_matrix
            mode = torch.linalg.solve(precision, shift / zeta + old.precision_matrix @ old.mean)
            own.append(torch.distributions.MultivariateNormal(mode, precision_matrix=precision))
            height += float(0.5 * (gram * own[-1].covariance_matrix).sum() + 0.5 * mode @ gram @ mode - shift @ mode)
            height += zeta * float(torch.distributions.kl_divergence(own[-1], old))
        heights.append(height)
        close(federation.own_models(after), torch.stack([q.mean for q in own]))
        first = sum(q.mean for q in own) / toy.K
        second = sum(q.covariance_matrix + q.mean.outer(q.mean) for q in own) / toy.K
        mean, found = torch.lerp(old.mean, first, beta), normal(gaussian.full, after.lam)
        close(found.mean, mean)
        mixed = torch.lerp(old.covariance_matrix + old.mean.outer(old.mean), second, beta)
        close(found.covariance_matrix, mixed - mean.outer(mean))
        before = after
    assert all(one > other for one, other in pairwise(heights))
