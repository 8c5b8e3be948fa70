"""The pictures of Bayesian duality, in small, and what they must show."""

from itertools import pairwise

import pytest
import torch

from fedddp.core import gaussian
from fedddp.exchange.messages import Totals
from fedddp.figures import duality_logistic, duality_logistic_full, duality_outlier, duality_ridge
from fedddp.methods import bayes_admm
from fedddp.methods._sites import Server
from tests import toy


def test_bayes_admm_solves_ridge_regression_in_one_round_and_the_others_do_not():
    found = duality_ridge.curves(duality_ridge.problem("digits", count=40, side=3), rounds=3)
    assert found["BayesADMM"][1] < 1e-10
    assert min(found["ADMM"][1:]) > 0.01
    assert min(found["BregmanADMM"][1:]) > 0.01


def test_with_an_outlier_bayes_admm_settles_sooner():
    """How far the server's boundary still moves after the second round."""
    task = duality_outlier.problem()
    moves = {}
    for name, (_, means) in duality_outlier.paths(task, rounds=5).items():
        angle = (means[:, 0, 1] / means[:, 0, 0]).atan()
        moves[name] = float((angle[4] - angle[1]).abs())
    assert moves["BayesADMM"] < 0.6 * moves["ADMM"]


def test_the_outlier_is_drawn(tmp_path):
    path = tmp_path / "outlier.png"
    duality_outlier.draw(path, rounds=2)
    assert path.stat().st_size > 5000


def test_on_logistic_regression_bayes_admm_is_faster_than_damped_pvi_and_bregman_admm(tmp_path):
    path = tmp_path / "logistic.png"
    duality_logistic_full.draw(path, source="digits", count=8, side=2, rounds=1)
    assert path.stat().st_size > 5000
    found = duality_logistic_full.curves(duality_logistic_full.problem("digits", 12, 2), rounds=3)
    best = found["all data"][0]
    above = {name: values[3] - best for name, values in found.items() if name != "all data"}
    assert all(value > -1 for value in above.values())
    assert above["BayesADMM"] < 0.5 * min(above["PVI, damped"], above["BregmanADMM"])


def test_in_the_released_setting_pvi_goes_up_where_bayes_admm_comes_down(tmp_path):
    """In small: 800 digits and 100 larger steps a fit; PVI turns after two rounds, BayesADMM comes down in all."""
    local = duality_logistic.Annealed(epochs=100, lr=0.02, beta2=0.995)
    found = duality_logistic.curves(duality_logistic.problem("digits", 800, side=8), rounds=5, local=local, samples=4)
    assert found["PVI"][-1] > 3 * min(found["PVI"])
    assert found["PVI"][-1] > found["PVI"][0]
    assert all(after < before for before, after in pairwise(found["BayesADMM"]))
    assert found["BayesADMM"][-1] < min(found["PVI, damped"][-1], found["BregmanADMM"][-1])
    path = tmp_path / "logistic.png"
    duality_logistic.draw_curves(path, found)
    assert path.stat().st_size > 5000


def test_the_rate_falls_to_nothing_within_a_fit():
    rates = duality_logistic.cosine(4)
    assert [round(float(rate), 6) for rate in rates] == [1.0, 0.853553, 0.5, 0.146447]


@pytest.mark.parametrize("rho", [0.2, 1.0])
@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_what_one_client_alone_knows_makes_its_next_cavity_improper(rho, factor):
    """Why long solves blow up: after a round rho s - u < 0 just where h > delta (1 + K rho)/(1 + (K - 2) rho).

    h is the curvature that one of K clients alone has found. A loss that grows linearly cannot hold such a cavity, so
    the client's problem has no minimum; a fit of bounded length ends before that shows.
    """
    delta, clients, task = 10.0, toy.K, toy.task()
    known = factor * delta * (1 + clients * rho) / (1 + (clients - 2) * rho)
    method = bayes_admm.Method(rho=rho, delta=delta)
    zero, found = torch.zeros(toy.D, dtype=torch.float64), [known, *[0.0] * (clients - 1)]
    prior = gaussian.diagonal.natural(zero, delta)
    lam = torch.stack([gaussian.diagonal.natural(zero, delta + h) for h in found])
    total: Totals = {"lam": lam.mean(0), "clients": torch.tensor(float(clients))}
    after = method.server_step(Server(prior, prior), total, task)
    dual = rho * (lam[0] - prior)
    cavity = gaussian.diagonal.precision(rho * after.lam - dual)
    assert bool((cavity < 0).all()) == (factor > 1)
