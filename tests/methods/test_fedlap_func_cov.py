"""FedLap-Func with covariances: where its function terms cancel exactly, and what they are where they do not."""

import pytest
import torch

from fedddp.clients.curvature import ggn_of_points
from fedddp.config import loading as configuration
from fedddp.core import gaussian
from fedddp.local import exact, laplace
from fedddp.methods import _memory, fedlap_cov, fedlap_func_cov
from fedddp.runs.build import make_task
from tests import toy
from tests.small import MODELS, settings

POINT = laplace.Solver(point="sgd", lr=0.05, epochs=30, batch_size=64)


@pytest.fixture(scope="module")
def digits():
    words = settings("fedlap_func_cov", *MODELS["mlp"], "federation.dtype=float64", "data.test_fraction=0.5")
    return make_task(configuration.load(None, words), torch.device("cpu"))


@pytest.mark.parametrize("options", [{"points": 0}, {"points": 2, "tau": 0.0}])
def test_with_nothing_to_remember_it_is_fedlap_cov(exchange, options):
    task = toy.task()
    method = fedlap_func_cov.Method(delta=2.0, **options)
    a = toy.iterate(toy.federation(method, exact.Solver(), task, exchange), 4)
    b = toy.iterate(toy.federation(fedlap_cov.Method(delta=2.0), exact.Solver(), task, exchange), 4)
    for one, other in zip(a, b, strict=True):
        assert torch.equal(one.lam, other.lam)


def test_on_linear_regression_with_a_full_covariance_nothing_is_counted_twice(exchange):
    """F_k(w) is ½|w - w_k|² in H_k there: fedlap_cov, iterate by iterate, where the server has nothing left to do."""
    task, shared = toy.task(), {"delta": 2.0, "covariance": "full", "damping": 0.3}
    method = fedlap_func_cov.Method(points=3, tau=0.2, steps=0, **shared)
    a = toy.iterate(toy.federation(method, POINT, task, exchange), 4)
    b = toy.iterate(toy.federation(fedlap_cov.Method(**shared), POINT, task, exchange), 4)
    assert float(a[-1].around.norm()) > 1
    for one, other in zip(a, b, strict=True):
        torch.testing.assert_close(one.lam, other.lam, rtol=1e-11, atol=1e-11)
        rest = one.sites - one.known_twice
        slope = _memory.everyone(one, task).pull(one.theta[None]) + gaussian.full.energy_grad(rest, one.theta[None])
        assert slope.abs().max() < 1e-11
    plain = fedlap_func_cov.Method(points=3, tau=0.2, steps=0, correction=False, **shared)
    c = toy.iterate(toy.federation(plain, POINT, task, exchange), 4)
    assert (c[-1].theta - b[-1].theta).norm() > 1e-4


def test_the_total_is_the_sum_over_clients(digits, exchange):
    """With clients away, the server's sums of sites and of H_k are those of what all clients hold."""
    method = fedlap_func_cov.Method(delta=3.0, tau=0.01, steps=2)
    fed = toy.federation(method, laplace.Solver(epochs=1, lr=0.001), digits, exchange, participation=0.5)
    server = toy.iterate(fed, 3)[-1]
    prior = method.init_server(digits).lam
    torch.testing.assert_close(server.sites, prior + fed.store.memory.dual.sum(0))
    torch.testing.assert_close(server.known_twice, fed.store.memory.around.sum(0))


@pytest.mark.parametrize("family", [gaussian.full, gaussian.diagonal], ids=["full", "diagonal"])
def test_functions_bend_like_their_hessian(exchange, family):
    """The curvature of F_k at the point that its labels are of is H_k; here by the gradient's differences."""
    words = ["data.test_fraction=0.5", "model.name=logistic", "federation.dtype=float64", "seed=3"]
    task = make_task(configuration.load("digits", words), torch.device("cpu"))
    theta = task.initial
    stored, weight = _memory.Choice("own", 1, 0.5).choose(task, 0)
    inputs, labels = task.data.prepare(stored, task.dtype), _memory.predictions(task, theta, stored)
    wanted = weight.unsqueeze(1) * labels
    memory = _memory.Memory(task, inputs, weight[None], wanted[None])
    assert memory.pull(theta[None]).abs().max() < 1e-12
    step, columns = 1e-5, [0, 100, 333]
    found = ggn_of_points(task, theta, inputs, labels, weight, family)
    for column in columns:
        there, here = theta.clone(), theta.clone()
        there[column] += step
        here[column] -= step
        slope = (memory.pull(there[None]) - memory.pull(here[None]))[0] / (2 * step)
        mine = slope if family is gaussian.full else slope[column]
        torch.testing.assert_close(mine, found[column], rtol=1e-5, atol=1e-7)
