"""FALD and VR-FALD*: Langevin's step of all data, no drift with control variates, and the pooled posterior."""

from dataclasses import replace

import pytest
import torch

from fedddp.local import iasg, langevin
from fedddp.methods import fald, vr_fald
from fedddp.methods._chains import Chains, begin, diagnostics, extend, samples
from tests import toy
from tests.methods.test_bayesian_duality import DELTA, close, posterior

COLD = 1e-30  # no noise to speak of, and no prior
METHODS = [fald.Method, vr_fald.Method]


def solver(task, share, epochs=1, batch_size=100):
    """Whose epoch is a step of `share`/λ_max of the pooled posterior."""
    matrix = posterior(task)[1:]
    lr = share * int(task.num_examples.sum()) / float(torch.linalg.eigvalsh(matrix).max())
    return langevin.Solver(lr=lr, epochs=epochs, batch_size=batch_size, per_epoch=True, samples=1)


def test_control_variates_leave_the_pooled_optimum_where_it_is(exchange):
    """With several small batches a round; without them the clients drift away from it."""
    task = toy.task()
    task = replace(task, initial=toy.pooled(task))
    moved = []
    for method in METHODS:
        settings = {"temperature": COLD, "chains": 1}
        local = solver(task, 0.1, epochs=3, batch_size=4)
        last = toy.iterate(toy.federation(method(**settings), local, task, exchange), 3)[-1]
        moved.append(float((last.theta - task.initial).norm()))
    assert moved[0] > 1e-3
    assert moved[1] < 1e-13


@pytest.mark.parametrize("method", METHODS)
def test_one_step_each_is_a_langevin_step_of_all_data(exchange, method):
    """Its drift exactly; its noise, of 4 coordinates in 100 chains, to 4 deviations of such a variance."""
    task = toy.task()
    total, local = int(task.num_examples.sum()), solver(task, 0.2)
    grams = [toy.gram(task, k) for k in range(toy.K)]
    matrix, shift = (sum(part) for part in zip(*grams, strict=True))
    ends = []
    for temperature, delta in ((COLD, 1.0), (1.0, DELTA)):
        made = method(temperature=temperature, delta=delta, chains=100)
        start, end = toy.iterate(toy.federation(made, local, task, exchange), 1)
        precision = matrix + temperature * delta * torch.eye(toy.D, dtype=torch.float64)
        drift = start.chains.now - local.lr / total * (start.chains.now @ precision - shift)
        ends.append(end.chains.now - drift)
    close(ends[0], torch.zeros_like(ends[0]))
    deviation = (2 * local.lr / total) ** 0.5
    assert abs(float(ends[1].var() / deviation**2) - 1) < 4 * (2 / ends[1].numel()) ** 0.5
    assert ends[1].mean(0).abs().max() < 4 * deviation / 100**0.5


def test_its_states_are_the_pooled_posteriors(exchange):
    """Two local steps of share s = .1 a round: a direction of precision λ forgets in λ_max/(2 s λ) rounds.

    From the known λ follow the independent draws in all rounds, of which means and variances are known to a factor; the
    length of the steps adds up to 2 s to a variance. So in the mean over whitened coordinates, to 4 deviations.
    """
    task, share, chains, rounds = toy.task(), 0.1, 3, 450
    local = solver(task, share, epochs=2)
    method = vr_fald.Method(delta=DELTA, chains=chains, burn_in=100, keep=chains * (rounds - 100))
    last = toy.iterate(toy.federation(method, local, task, exchange, width=5), rounds)[-1]
    lam = posterior(task)
    mean, precision = torch.linalg.solve(lam[1:], lam[0]), lam[1:]
    values, vectors = torch.linalg.eigh(precision)
    white = (samples(last.chains) - mean) @ vectors * values.sqrt()
    draws = chains * (rounds - 100) / (values.max() / (share * 2 * values)) / 2  # of a mean, per direction
    assert (white.mean(0).abs() < 4 / draws.sqrt()).all()
    error = 4 * float((1 / draws).mean() / toy.D) ** 0.5  # squares forget twice as fast and vary twice as much
    assert -error < float(white.square().mean()) - 1 < error + 2 * share
    found = diagnostics(last.chains)
    assert found["rhat"] < 1.05
    assert 0.1 < found["ess"] / float(draws.mean()) < 10  # a variance of three numbers, in four directions


def test_diagnostics_against_their_definition():
    path = torch.randn(40, 3, 5, generator=torch.Generator().manual_seed(2), dtype=torch.float64).cumsum(0)
    chains = begin(path[0], keep=7)
    for state in path:
        chains = extend(chains, state, burn_in=10, thin=4)
    used = path[10:]
    within, between = used.var(0).mean(), used.mean(0).var(0).mean()
    total = 29 / 30 * within + between
    found = diagnostics(chains)
    assert found["rhat"] == pytest.approx(float((total / within).sqrt()))
    assert found["ess"] == pytest.approx(float(3 * total / between))
    ring = torch.cat(list(used[::4]))
    assert {tuple(row) for row in samples(chains).tolist()} == {tuple(row) for row in ring[-7:].tolist()}


def test_alike_chains_are_believed_no_more_draws_than_they_have():
    now = torch.arange(6.0).view(3, 2).expand(2, 3, 2)
    chains: Chains = begin(now[:, 0], keep=4)
    for step in range(3):
        chains = extend(chains, now[:, step], burn_in=0, thin=1)
    assert diagnostics(chains)["ess"] == 6
    assert not diagnostics(begin(now[:, 0], keep=4))


def test_solvers_without_a_time_of_diffusion_are_refused():
    for local in (langevin.Solver(), iasg.Solver()):
        assert "local.per_epoch=true" in fald.Method().mismatch(local)
    assert not fald.Method().mismatch(langevin.Solver(per_epoch=True))
