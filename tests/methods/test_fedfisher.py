"""FedFisher: the minimum of the clients' quadratics."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedddp.clients.cohort import Cohort
from fedddp.clients.oracle import Oracle
from fedddp.core.data import Examples
from fedddp.local import exact
from fedddp.methods import fedfisher
from fedddp.methods._descent import scores
from fedddp.methods._structures import STRUCTURES
from tests import toy
from tests.methods import given

FAST = {"lr": 500.0, "eps": 1e3, "steps": 250}  # as good as plain descent with momentum: exact for quadratics


def close(a, b, tolerance=1e-6):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def test_with_diagonals_the_minimum_is_the_ratio_of_weighted_sums(exchange):
    task = toy.task()
    theta = given.around(task)
    fisher = torch.stack([toy.gram(task, k)[0].diagonal() for k in range(toy.K)])
    found = given.merge(fedfisher.Method(fisher="diag", **FAST), theta, task, exchange).theta
    close(found, (fisher * theta).sum(0) / fisher.sum(0))


def test_with_factors_that_are_exact_the_minimum_is_the_pooled_optimum(exchange):
    """One linear layer with one output: the Kronecker product is the Hessian itself."""
    task = toy.task()
    found = toy.iterate(toy.federation(fedfisher.Method(**FAST), exact.Solver(), task, exchange), 1)[-1].theta
    close(found, toy.pooled(task))


def test_several_rounds_go_on_from_the_last_and_keep_an_optimum(exchange):
    task = toy.task()
    states = toy.iterate(toy.federation(fedfisher.Method(**FAST), exact.Solver(), task, exchange), 2)
    close(states[1].theta, states[2].theta)


@pytest.mark.parametrize("fisher", fedfisher.FISHERS)
def test_the_slope_is_the_sum_of_the_clients_own(exchange, fisher):
    """One step of plain descent with momentum: theta moves along Σ_k F_k (theta - theta_k), per example."""
    task = given.task(given.mlp(), (5,))
    theta, kept = given.around(task), STRUCTURES[fedfisher.FISHERS[fisher]]
    cohort = Cohort(tuple(range(3)), 0, task, Oracle(task.module, task.layout, task.objective))
    weight = task.num_examples.double()
    start = weight @ theta / weight.sum()
    slope = kept.product(task, kept.measure(cohort, theta), (start - theta).unsqueeze(1)).sum((0, 1)) / weight.sum()
    method = fedfisher.Method(fisher=fisher, steps=1, lr=1e4, eps=1e6)
    close(given.merge(method, theta, task, exchange).theta, start - slope * 1e4 / (slope.abs() + 1e6), 1e-11)


def test_a_client_that_is_left_out_adds_nothing_to_the_factors(exchange):
    task = given.task(given.mlp(), (5,))
    theta = given.around(task)
    two = toy.federation(fedfisher.Method(steps=30), given.Given(theta), task, exchange)
    two.participation = 0.67
    state, report = two.round(two.method.init_server(task), 0)
    theta[[k for k in range(3) if k not in report.clients.tolist()]] = torch.nan
    three = toy.federation(fedfisher.Method(steps=30), given.Given(theta), task, exchange)
    three.skip_bad = True
    close(three.round(three.method.init_server(task), 0)[0].theta, state.theta, 1e-12)


def test_the_descent_begins_at_the_weighted_mean(exchange):
    task = toy.task()
    theta = given.around(task)
    found = given.merge(fedfisher.Method(steps=1, lr=1e-9), theta, task, exchange).theta
    weight = task.num_examples.double() / task.num_examples.sum()
    close(found, weight @ theta)


@pytest.mark.parametrize(("fisher", "bits", "rank"), [("diag", 16, 0), ("kfac", 16, 0), ("kfac", 8, 0), ("kfac", 8, 2)])
def test_fewer_bits_cost_a_little_accuracy_and_save_bytes(exchange, fisher, bits, rank):
    task = given.task(given.mlp(), (5,))
    theta = given.around(task)
    whole = fedfisher.Method(fisher=fisher, steps=200)
    short = fedfisher.Method(fisher=fisher, bits=bits, rank=rank, steps=200)
    one, other = (toy.federation(m, given.Given(theta), task, exchange) for m in (whole, short))
    (a, before), (b, after) = (fed.round(fed.method.init_server(task), 0) for fed in (one, other))
    assert 0 < (a.theta - b.theta).norm() < (0.6 if rank else 0.05) * (a.theta - task.initial).norm()
    numel = task.layout.numel
    numbers = STRUCTURES["kron" if fisher == "kfac" else "diag"].size(task)
    assert before.bytes_up == 8 * (numel + numbers)
    if not rank:
        assert after.bytes_up == 2 * numel + bits // 8 * numbers
    assert after.bytes_up < before.bytes_up


def test_validation_points_choose_the_place_on_the_way(exchange):
    task = given.with_validation(given.task(given.mlp(), (5,)))
    theta = given.around(task)
    method = fedfisher.Method(steps=40, lr=0.1, validate_every=4)
    state = given.merge(method, theta, task, exchange)
    assert torch.equal(state.theta, state.descent.best[0])
    assert given.accuracy(task, state.theta) == pytest.approx(float(state.descent.score[0]))
    assert state.descent.score[0] >= given.accuracy(task, state.descent.theta[0])


def test_without_classes_the_least_loss_on_validation_points_chooses(exchange):
    task = toy.task()
    held = Examples(task.data.train.inputs[:9], task.data.train.targets[:9])
    task = replace(task, data=replace(task.data, validation=held))
    method = fedfisher.Method(fisher="diag", steps=40, lr=0.1, validate_every=4)
    state = given.merge(method, given.around(task), task, exchange)
    losses = (held.inputs @ state.theta - held.targets).square() / 2
    close(state.descent.score[0], -losses.mean())
    assert state.descent.score[0] >= scores(task, state.descent.theta)[0]


def test_kfac_refuses_normalisation_layers(exchange):
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 3))
    task = given.task(module, (1, 6, 6))
    with pytest.raises(ValueError, match=r"GroupNorm.*use the diagonal"):
        fedfisher.Method().init_server(task)
    fedfisher.Method(fisher="diag").init_server(task)
