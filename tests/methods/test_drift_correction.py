"""scaffold, mime and mimelite: they reach the pooled optimum of heterogeneous quadratics, where fedavg stalls."""

import pytest
import torch

from fedddp.config import loading as configuration
from fedddp.local import adam, sgd
from fedddp.methods import fedavg, mime, mimelite, scaffold
from tests import toy

DRIFTS = sgd.Solver(lr=0.1, epochs=8, batch_size=100)  # eight steps on all of a client's data


def last(method, exchange, task, rounds, local=DRIFTS):
    return toy.iterate(toy.federation(method, local, task, exchange, width=toy.K), rounds)[-1]


def close(a, b, tolerance=1e-9):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_fedavg_stalls_away_from_the_optimum(exchange):
    task = toy.task()
    states = toy.iterate(toy.federation(fedavg.Method(), DRIFTS, task, exchange), 60)
    close(states[-1].theta, states[-2].theta, 1e-6)
    assert (states[-1].theta - toy.pooled(task)).norm() > 0.05


@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_reaches_the_pooled_optimum(exchange, option):
    task = toy.task()
    method = scaffold.Method(option=option, weights="examples")
    close(last(method, exchange, task, 40).theta, toy.pooled(task), 1e-7)


def test_scaffold_with_plain_means_minimises_the_mean_of_mean_losses(exchange):
    task = toy.task()
    found = last(scaffold.Method(), exchange, task, 40).theta
    close(found, toy.pooled(task, weights=[1 / n for n in toy.SIZES]), 1e-7)


def test_scaffold_starts_as_fedavg(exchange):
    """Zero controls, equal clients, server step one."""
    task, local = toy.task(sizes=(12,) * 4), sgd.Solver(lr=0.05, epochs=3, batch_size=5)
    a = last(scaffold.Method(), exchange, task, 1, local)
    close(a.theta, last(fedavg.Method(), exchange, task, 1, local).theta, 1e-14)


@pytest.mark.parametrize("weights", ["plain", "examples"])
def test_the_servers_control_is_the_mean_of_all_clients_controls(exchange, weights):
    fed = toy.federation(scaffold.Method(weights=weights), DRIFTS, toy.task(), exchange, participation=0.4)
    server = toy.iterate(fed, 7)[-1]
    share = torch.tensor(toy.SIZES if weights == "examples" else [1] * toy.K, dtype=torch.float64)
    close(server.control, share / share.sum() @ fed.store.memory.control, 1e-12)


def test_option_two_is_the_mean_gradient_along_the_path(exchange):
    """With one step, option II's control is the gradient at theta, which is option I's."""
    task, local = toy.task(), sgd.Solver(lr=0.1, batch_size=100)
    controls = []
    for option in ("I", "II"):
        fed = toy.federation(scaffold.Method(option=option), local, task, exchange)
        toy.iterate(fed, 3)
        controls.append(fed.store.memory.control)
    close(*controls, 1e-12)


def test_option_two_needs_plain_sgd():
    for local in (adam.Solver(), sgd.Solver(momentum=0.9), sgd.Solver(clip=1.0)):
        assert not scaffold.Method(option="I").mismatch(local)
        assert "option=II needs sgd without momentum and clipping, and with I any" in scaffold.Method().mismatch(local)
    assert not scaffold.Method().mismatch(sgd.Solver())
    with pytest.raises(ValueError, match=r"local=adam: does not fit method=scaffold, .*II needs sgd.*choose.*sgd"):
        configuration.load(None, ["method=scaffold", "local=adam"])


@pytest.mark.parametrize(("momentum", "rounds"), [(0.0, 30), (0.6, 65)])
def test_mime_reaches_the_pooled_optimum(exchange, momentum, rounds):
    task = toy.task()
    method = mime.Method(momentum=momentum)
    close(last(method, exchange, task, rounds).theta, toy.pooled(task), 1e-7)


def test_mimes_adaptive_statistics_stay_at_the_optimum_too(exchange):
    task = toy.task()
    method = mime.Method(optimiser="adagrad", momentum=0.5, tau=0.1)
    close(last(method, exchange, task, 40, sgd.Solver(lr=0.1, epochs=4, batch_size=100)).theta, toy.pooled(task), 1e-6)


def test_mimelite_without_momentum_is_fedavg(exchange):
    task, local = toy.task(), sgd.Solver(lr=0.05, epochs=3, batch_size=5)
    a, b = (last(m, exchange, task, 4, local) for m in (mimelite.Method(momentum=0.0), fedavg.Method()))
    assert torch.allclose(a.theta, b.theta, rtol=1e-13, atol=1e-15)  # fedavg steps in the products


def test_one_full_step_of_mime_is_a_step_of_the_servers_optimiser(exchange):
    """A single local step from theta on all data: c itself passes through U."""
    task, local = toy.task(), sgd.Solver(lr=0.2, batch_size=100)
    states = toy.iterate(toy.federation(mime.Method(momentum=0.5), local, task, exchange), 5)
    hessian, shift = (
        sum(part) / sum(toy.SIZES) for part in zip(*(toy.gram(task, k) for k in range(toy.K)), strict=True)
    )
    theta, first = task.initial, torch.zeros_like(task.initial)
    for state in states[1:]:
        first = 0.5 * first + 0.5 * (hessian @ theta - shift)
        theta = theta - 0.2 * first
        close(state.theta, theta, 1e-12)
        close(state.moments.first, first, 1e-12)


def test_mime_needs_plain_sgd():
    for local in (adam.Solver(), sgd.Solver(momentum=0.9)):
        for method in (mime.Method(), mimelite.Method()):
            assert "needs sgd without momentum" in method.mismatch(local)
    assert not mime.Method().mismatch(sgd.Solver())
    with pytest.raises(ValueError, match=r"local=adam: does not fit method=mime, which needs sgd without momentum"):
        configuration.load(None, ["method=mime", "local=adam"])
