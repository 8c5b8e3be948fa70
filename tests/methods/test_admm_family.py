"""Known answers of the ADMM family on linear regression (facts 5, 6 and 8 of its theory)."""

from dataclasses import replace

import pytest
import torch

from fedddp.clients.cohort import Cohort
from fedddp.clients.oracle import Oracle
from fedddp.local import exact, sgd
from fedddp.methods import fedadmm, fedavg, feddyn, federated_admm, fedlap, fedprox, preconditioned_admm
from tests import toy


def close(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_a_dual_is_minus_the_gradient_at_the_clients_point(exchange):
    """federated_admm: after each client and dual step v_k = -∇f_k(theta_k)."""
    task = toy.task()
    fed = toy.federation(federated_admm.Method(rho=0.7), exact.Solver(), task, exchange)
    server = fed.method.init_server(task)
    for number in range(4):
        before = fed.store.memory.dual.clone()
        anchor = server.theta
        server, _ = fed.round(server, number)
        for k in range(toy.K):
            theta = anchor + (fed.store.memory.dual[k] - before[k]) / 0.7
            hessian, shift = toy.gram(task, k)
            close(fed.store.memory.dual[k], -(hessian @ theta - shift), 1e-9)


@pytest.mark.parametrize("delta", [1.0, 3.0])
def test_federated_admm_reaches_the_pooled_minimiser(exchange, delta):
    task = toy.task()
    fed = toy.federation(federated_admm.Method(rho=5.0, delta=delta), exact.Solver(), task, exchange)
    server = toy.iterate(fed, 130)[-1]
    close(server.theta, toy.pooled(task, decay=delta), 1e-7)
    close(server.theta, server.duals / delta, 1e-6)


@pytest.mark.parametrize("method", [feddyn.Method(alpha=8.0), fedadmm.Method(alpha=8.0)])
def test_with_sum_losses_and_no_decay_the_pooled_optimum_is_reached(exchange, method):
    task = toy.task()
    close(toy.iterate(toy.federation(method, exact.Solver(), task, exchange), 90)[-1].theta, toy.pooled(task), 1e-7)


def test_with_mean_losses_another_optimum_is_reached(exchange):
    """As Eq. 2 prints it: argmin Σ f_k/N_k."""
    task = toy.task()
    method = fedadmm.Method(alpha=0.5, scale="mean")
    server = toy.iterate(toy.federation(method, exact.Solver(), task, exchange), 100)[-1]
    close(server.theta, toy.pooled(task, weights=[1 / n for n in toy.SIZES]), 1e-7)
    assert (server.theta - toy.pooled(task)).norm() > 1e-2


def test_feddyn_is_fedadmm_with_everyone_active(exchange):
    task = toy.task()
    a = toy.iterate(toy.federation(feddyn.Method(alpha=2.0), exact.Solver(), task, exchange), 10)
    b = toy.iterate(toy.federation(fedadmm.Method(alpha=2.0), exact.Solver(), task, exchange), 10)
    for one, other in zip(a, b, strict=True):
        close(one.theta, other.theta)


def test_fedprox_without_penalty_is_fedavg(exchange):
    task, local = toy.task(), sgd.Solver(lr=0.05, epochs=3, batch_size=5)
    a = toy.iterate(toy.federation(fedprox.Method(delta=0.0), local, task, exchange), 5)
    b = toy.iterate(toy.federation(fedavg.Method(), local, task, exchange), 5)
    for one, other in zip(a, b, strict=True):
        assert torch.allclose(one.theta, other.theta, rtol=1e-13, atol=1e-15)  # fedavg steps in the products


def test_fedadmm_with_duals_held_at_zero_is_fedprox_for_equal_clients(exchange):
    task, local = toy.task(sizes=(12,) * 4), sgd.Solver(lr=0.05, epochs=3, batch_size=5)
    a = toy.iterate(toy.federation(fedadmm.Method(alpha=0.4, dual_step=False), local, task, exchange), 5)
    b = toy.iterate(toy.federation(fedprox.Method(delta=0.4), local, task, exchange), 5)
    for one, other in zip(a, b, strict=True):
        close(one.theta, other.theta, 1e-12)


@pytest.mark.parametrize("method", [federated_admm.Method(), feddyn.Method()])
def test_the_servers_sum_is_the_sum_of_all_stored_duals(exchange, method):
    fed = toy.federation(method, exact.Solver(), toy.task(), exchange, participation=0.4)
    server = toy.iterate(fed, 7)[-1]
    close(server.duals, fed.store.memory.dual.sum(0))


def test_an_inactive_clients_memory_is_untouched(exchange):
    fed = toy.federation(federated_admm.Method(), exact.Solver(), toy.task(), exchange, participation=0.4)
    server = fed.method.init_server(fed.task)
    for number in range(5):
        before = fed.store.memory.dual.clone()
        server, report = fed.round(server, number)
        still = [k for k in range(toy.K) if k not in report.clients.tolist()]
        assert still
        assert torch.equal(fed.store.memory.dual[still], before[still])
        assert not torch.equal(fed.store.memory.dual, before)


def test_feddyn_sends_its_parameters_alone(exchange):
    """A dual's change is told by the mean: a client sends P numbers, two more and the weights of two means."""
    fed = toy.federation(feddyn.Method(), exact.Solver(), toy.task(), exchange)
    _, report = fed.round(fed.method.init_server(fed.task), 0)
    assert report.bytes_up == (toy.D + 4) * 8


def test_decay_on_the_mean_loss_is_a_clients_examples_times_it_on_the_sum(exchange):
    """As released: exact clients of linear regression, each with N_k times the decay in its own problem."""
    task = toy.task()
    method = feddyn.Method(alpha=0.3, weight_decay=0.01, decay_scale="mean")
    fed = toy.federation(method, exact.Solver(), task, exchange)
    start = fed.method.init_server(task)
    toy.iterate(fed, 1)
    for client in range(toy.K):
        gram, pull = toy.gram(task, client)
        pull, size = pull + 0.3 * start.theta, 0.3 + 0.01 * int(task.num_examples[client])
        expected = torch.linalg.solve(gram + size * torch.eye(toy.D, dtype=torch.float64), pull)
        close(fed.store.memory.dual[client], 0.3 * (expected - start.theta))


@pytest.mark.parametrize("precision", [1.0, 2.5])
def test_with_one_precision_everywhere_the_preconditioned_is_plain_admm(exchange, precision):
    """Iterate by iterate, with rho times the precision for its rho (App. C.2)."""
    task = toy.task()
    plain = toy.federation(federated_admm.Method(rho=0.7 * precision), exact.Solver(), task, exchange)
    other = preconditioned_admm.Method(rho=0.7, precision=precision)
    both = (toy.iterate(plain, 6), toy.iterate(toy.federation(other, exact.Solver(), task, exchange), 6))
    for one, two in zip(*both, strict=True):
        close(one.theta, two.theta)


@pytest.mark.parametrize("delta", [1.0, 3.0])
def test_a_preconditioner_changes_the_way_and_not_the_end(exchange, delta):
    task = toy.task()
    method = preconditioned_admm.Method(rho=4.0, delta=delta, scaling="curvature", floor=0.3)
    states = toy.iterate(toy.federation(method, exact.Solver(), task, exchange), 250)
    close(states[-1].theta, toy.pooled(task, decay=delta), 1e-6)
    pooled = sum(toy.gram(task, k)[0] for k in range(toy.K)).diagonal()
    close(states[-1].precision, (pooled / pooled.mean()).clamp_min(0.3))
    assert int(states[-1].rounds) == 250


def test_a_preconditioned_dual_is_minus_the_gradient_at_the_clients_point(exchange):
    task = toy.task()
    method = preconditioned_admm.Method(rho=0.7, scaling="curvature")
    fed = toy.federation(method, exact.Solver(), task, exchange)
    server, _ = fed.round(method.init_server(task), 0)
    for k in range(toy.K):
        theta = task.initial + fed.store.memory.dual[k] / (0.7 * server.precision)
        hessian, shift = toy.gram(task, k)
        close(fed.store.memory.dual[k], -(hessian @ theta - shift), 1e-9)


def test_without_a_proximal_term_at_the_server_admm_is_fedlap(exchange):
    """AMA (alpha=1) with rho = delta, started at the prior's mean: fedlap without damping."""
    task = toy.task(start=0.0)
    ama = federated_admm.Method(rho=60.0, delta=60.0, alpha=1.0)
    lap = fedlap.Method(delta=60.0, damping=1.0)
    both = [toy.iterate(toy.federation(method, exact.Solver(), task, exchange), 5) for method in (ama, lap)]
    for one, two in zip(*both, strict=True):
        close(one.theta, two.theta)


def test_the_expectation_is_kept_by_gradients_at_draws(exchange):
    """Every gradient is that at theta + z/√S of the client's stream; a quadratic's minimiser is the same (Eq. 11)."""
    task = toy.task()
    method = preconditioned_admm.Method(precision=4.0, expectation="sampled")
    server = method.init_server(task)
    cohort = Cohort(
        tuple(task.num_examples.argsort(descending=True).tolist()),
        0,
        task,
        Oracle(task.module, task.layout, task.objective),
    )
    drawn = cohort.drawn(preconditioned_admm._Draw(cohort, server.precision))
    theta = torch.randn(toy.K, toy.D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    noise = cohort.noise("expectation")
    for batch in cohort.batches(1, 64):
        rows = len(batch.inputs)
        z = noise.fill(torch.empty(rows, toy.D, dtype=torch.float64))
        close(drawn.grad(theta[:rows], batch), cohort.grad(theta[:rows] + z / 2, batch))
    local = sgd.Solver(lr=0.02, epochs=400, batch_size=64)
    states = [
        toy.iterate(toy.federation(replace(method, rho=1.0, expectation=kind), local, task, exchange), 1)[-1]
        for kind in ("delta", "sampled")
    ]
    assert 0 < float((states[0].theta - states[1].theta).norm()) < 0.3
