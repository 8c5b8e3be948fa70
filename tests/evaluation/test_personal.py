"""Personal models: the server's posterior is the prior, and what comes of it is exact where it can be."""

import json
from dataclasses import replace

import pytest
import torch

from fedddp.clients.cohort import Cohort
from fedddp.config import loading as configuration
from fedddp.core import gaussian
from fedddp.evaluation.personal import Personal, whole
from fedddp.local import exact, ivon, ivon_opt, sgd
from fedddp.methods import fedavg
from fedddp.records.table import FILE, read_tables
from tests import toy
from tests.small import METHODS, MODELS, fresh, run, settings

ON = ["evaluation.clients=server", "evaluation.personal=1", "evaluation.samples=3", "split.unseen=2"]


def gaussians(seed: int, count: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    mean = torch.randn(count, 5, generator=generator, dtype=torch.float64)
    return gaussian.diagonal.natural(mean, 0.5 + torch.rand(count, 5, generator=generator, dtype=torch.float64))


def kl(mean: torch.Tensor, precision: torch.Tensor, lam: torch.Tensor) -> torch.Tensor:
    """KL(N(mean, 1/precision) || lam)."""
    other = gaussian.diagonal.precision(lam)
    ratio = other / precision
    return 0.5 * (ratio - 1 - ratio.log() + other * (mean - gaussian.diagonal.mean(lam)).square()).sum()


@pytest.mark.parametrize("share", [0.0, 0.2, 0.7, 1.0])
def test_the_closed_form_is_the_minimum_of_both_divergences(share):
    lam, other = gaussians(0, 2)
    moved = gaussian.towards(lam, other, share)
    mean, precision = gaussian.diagonal.mean(moved), gaussian.diagonal.precision(moved)
    mean, precision = mean.clone().requires_grad_(), precision.clone().requires_grad_()
    ((1 - share) * kl(mean, precision, lam) + share * kl(mean, precision, other)).backward()
    assert mean.grad.abs().max() < 1e-14
    assert precision.grad.abs().max() < 1e-14
    assert torch.equal(gaussian.towards(lam, other, 0.0), lam)
    assert torch.equal(gaussian.towards(lam, other, 1.0), other)


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_a_personal_posterior_is_the_prior_times_the_clients_likelihood(exchange, covariance):
    """And a share of the way is that likelihood to the power of the share."""
    task, family = toy.task(), gaussian.FAMILIES[covariance]
    lam = family.natural(torch.full((toy.D,), 0.4, dtype=torch.float64), 2.0)
    cohort = Cohort((1, 3), 5, task, toy.federation(fedavg.Method(), exact.Solver(), task, exchange).oracle)
    for share in (1.0, 0.3):
        with torch.no_grad():
            theta, found = Personal(exact.Solver(), share).fit(cohort, torch.zeros(toy.D), lam)
        for row, client in enumerate(cohort.ids):
            gram, shift = toy.gram(task, client)
            if covariance == "full":
                truth = lam + share * torch.cat([shift.unsqueeze(0), gram])
                torch.testing.assert_close(found[row], truth, rtol=1e-9, atol=1e-9)
                assert torch.equal(theta[row], family.mean(found)[row])
            elif share == 1.0:  # the mean is the exact one, the precision its diagonal
                matrix = gram + 2.0 * torch.eye(toy.D, dtype=torch.float64)
                torch.testing.assert_close(theta[row], torch.linalg.solve(matrix, shift + 0.8), rtol=1e-9, atol=1e-9)
                torch.testing.assert_close(family.precision(found)[row], matrix.diagonal())


def test_a_point_method_with_a_posterior_is_pulled_to_it_and_one_without_is_not(exchange):
    task = toy.task()
    cohort = Cohort((0, 2), 5, task, toy.federation(fedavg.Method(), exact.Solver(), task, exchange).oracle)

    solver = sgd.Solver(lr=0.02, epochs=400, batch_size=1000)
    lam = gaussian.diagonal.natural(torch.full((toy.D,), 0.4, dtype=torch.float64), 20.0)
    with torch.no_grad():
        pulled, none = Personal(solver).fit(cohort, task.initial, lam)
        free, _ = Personal(solver).fit(cohort, task.initial, None)
    assert none is None
    for row, client in enumerate(cohort.ids):
        gram, shift = toy.gram(task, client)
        truth = torch.linalg.solve(gram + 20 * torch.eye(toy.D, dtype=torch.float64), shift + 8)
        torch.testing.assert_close(pulled[row], truth, rtol=1e-4, atol=1e-4)
        gradient = gram @ free[row] - shift
        assert gradient.norm() < (gram @ task.initial - shift).norm() / 5


def test_epochs_are_the_evaluations_and_the_rate_is_constant():
    made = Personal.of(ivon.Solver(epochs=7, schedule="cosine"), 2, 0.5)
    assert (made.local.epochs, made.local.schedule, made.share) == (2, "constant", 0.5)
    with pytest.raises(ValueError, match=r"takes a prior N\(0, 1/delta\) only"):
        Personal.of(ivon_opt.Solver(), 1, 1.0)


def test_clients_that_never_train_have_streams_and_examples_here():
    task = toy.task()
    task = replace(task, shards=task.shards.take(torch.arange(3)), unseen=task.shards.take(torch.tensor([4])))
    everyone = whole(task)
    assert everyone.num_clients == 4
    assert torch.equal(everyone.shards.of_client(3), task.unseen.of_client(0))
    assert everyone.streams.key("order", 0, 1) != task.streams.key("order", 0, 1)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_tells_of_each_client_and_what_it_makes_of_the_servers_model(exchange, tmp_path, method):
    """Those that train and those that never do, in one round; who has no model of its own is told of the server's."""
    other = ["local.name=ivon"] if method == "centralized_vi" else []  # whose usual solver takes no other prior
    words = settings(method, *MODELS["mlp"], *ON, "federation.rounds=1", "local.epochs=1", *other)
    assert run(words, fresh(tmp_path, "run"))
    (table,) = read_tables(tmp_path / "run").values()
    held = table.columns["test_examples"] > 0
    assert int(held[-table.unseen :].sum()) > 0
    made = ["personal_accuracy", "personal_nll", "personal_ece"]
    if "server_accuracy" in table.columns:  # clients have models of their own
        assert not {*made} & table.columns.keys()
        made = ["server_accuracy", "server_nll", "server_ece"]
    for name in ("accuracy", "nll", "ece", *made):
        found = table.columns[name]
        if f"server_{name}" in table.columns:
            found = torch.where(found.isfinite(), found, table.columns[f"server_{name}"])
        assert bool(found[held].isfinite().all()), name
    record = json.loads((tmp_path / "run" / "metrics.jsonl").read_text())
    for what in ("mean", "worst_tenth", "spread"):
        assert {f"clients_accuracy_{what}", f"unseen_{made[0]}_{what}"} <= record.keys()


@pytest.mark.parametrize("method", ["fedavg", "bayes_admm", "fedlap", "scaffold"])
def test_the_same_bits_on_any_number_of_ranks(worlds, tmp_path, method):
    more = ["federation.rounds=2", "local.epochs=1"]
    config = configuration.load(None, settings(method, *MODELS["conv"], *ON, *more))
    for ranks in (1, 3):
        worlds(ranks).run(run, config, fresh(tmp_path, f"{ranks}"))
    assert (tmp_path / "1" / FILE).read_text() == (tmp_path / "3" / FILE).read_text()
    columns = read_tables(tmp_path / "1")[2].columns
    assert int(columns["personal_accuracy"].isfinite().sum()) == len(columns["accuracy"]), "unseen ones, too"
    assert ("personal_averaged_nll" in columns) == (method == "bayes_admm")


def test_the_same_bits_after_a_stop_and_training_feels_nothing(worlds, tmp_path):
    words = settings("bayes_admm", *MODELS["mlp"], "federation.rounds=3", "checkpoint.every=1", "evaluation.every=1")
    config = configuration.load(None, [*words, *ON])
    worlds(1).run(run, config, fresh(tmp_path, "whole"))
    assert worlds(3).run(run, config, fresh(tmp_path, "parts"), False, 2) == [None] * 3
    resumed = worlds(2).run(run, config, str(tmp_path / "parts"), True)[0]
    assert (tmp_path / "parts" / FILE).read_text() == (tmp_path / "whole" / FILE).read_text()
    off = worlds(1).run(run, configuration.load(None, [*words, ON[-1]]), fresh(tmp_path, "off"))[0]
    assert off["checksum"] == resumed["checksum"]
