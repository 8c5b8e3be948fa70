"""Known answers of the methods on natural parameters, on linear and logistic regression in float64."""

from dataclasses import replace
from typing import Any

import pytest
import torch

from fedddp.clients.cohort import Cohort
from fedddp.clients.oracle import Oracle
from fedddp.config import loading as configuration
from fedddp.core import gaussian
from fedddp.core.objective import Binary
from fedddp.core.rng import Streams
from fedddp.local import exact, ivon, ivon_opt, laplace, sgd, von
from fedddp.methods import bayes_admm, bregman_admm, centralized_vi, federated_admm, fedlap, fedlap_cov, pvi
from fedddp.rounds.failures import ClientFailed, Diverged
from fedddp.rounds.solver import Nothing
from tests import toy

DELTA = 0.7
FULL = {"covariance": "full", "delta": DELTA}


def close(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


class Delta(laplace.Solver):
    """Laplace's approximation with the exact point optimum of linear regression."""

    def _solver(self) -> Any:
        return exact.Solver()


def in_family(matrix, covariance):
    """The part of a precision matrix that a family can hold."""
    diagonal = matrix.diagonal()
    return {"full": matrix, "diagonal": diagonal, "isotropic": diagonal.mean()[None]}[covariance]


def posterior(task, covariance="full", delta=DELTA):
    """The best Gaussian of a family for the pooled data."""
    grams = [toy.gram(task, k) for k in range(task.num_clients)]
    precision = sum(g for g, _ in grams) + delta * torch.eye(toy.D, dtype=torch.float64)
    mean = torch.linalg.solve(precision, sum(s for _, s in grams))
    return gaussian.FAMILIES[covariance].natural(mean, in_family(precision, covariance))


def logistic(kind="frozen"):
    """Two clients with yes-no targets; the same noise in every round, so that fixed points are exact."""
    task = toy.task(sizes=(13, 9), dims=2, start=0.0)
    targets = (task.data.train.targets > 0).long()
    examples = replace(task.data.train, targets=targets)
    data = replace(task.data, train=examples, test=examples, classes=2)
    return replace(task, data=data, objective=Binary(), streams=Streams(0, kind))


def duals(federation):
    return federation.store.memory.dual


def test_one_round_is_enough_on_a_conjugate_problem(exchange):
    """Prop. 3.2: rho = 1/K, full covariance; and the second round changes nothing."""
    task = toy.task()
    method = bayes_admm.Method(rho=1 / toy.K, **FULL)
    _, first, second = toy.iterate(toy.federation(method, von.Solver(), task, exchange), 2)
    close(first.lam, posterior(task))
    close(first.theta, toy.pooled(task, decay=DELTA))
    close(second.lam, first.lam)
    admm = toy.federation(federated_admm.Method(rho=1 / toy.K, delta=DELTA), exact.Solver(), task, exchange)
    assert (toy.iterate(admm, 2)[-1].theta - first.theta).norm() > 1e-2


def test_with_unit_covariance_and_the_delta_approximation_it_is_federated_admm(exchange):
    """App. C.2, iterate by iterate."""
    task = toy.task(start=0.0)
    bayes = bayes_admm.Method(rho=0.3, covariance="isotropic")
    a = toy.iterate(toy.federation(bayes, Delta(curvature="none"), task, exchange), 10)
    b = toy.iterate(toy.federation(federated_admm.Method(rho=0.3), exact.Solver(), task, exchange), 10)
    for one, other in zip(a, b, strict=True):
        close(one.theta, other.theta)


@pytest.mark.parametrize("covariance", gaussian.FAMILIES)
def test_with_alpha_1_and_no_rho_it_is_damped_pvi(exchange, covariance):
    """App. A, on a problem that is not conjugate."""
    task = logistic()
    solver = von.Solver(samples=1)
    bayes = bayes_admm.Method(rho=1.0, alpha=1.0, damping=0.2, covariance=covariance, delta=DELTA)
    plain = pvi.Method(damping=0.2, covariance=covariance, delta=DELTA)
    a, b = (toy.iterate(toy.federation(method, solver, task, exchange), 2) for method in (bayes, plain))
    for one, other in zip(a, b, strict=True):
        close(one.lam, other.lam)


@pytest.mark.parametrize(("covariance", "temperature"), [("full", 1.0), ("diagonal", 0.25)])
def test_at_pvis_fixed_point_a_dual_is_the_natural_gradient(exchange, covariance, temperature):
    task, solver = logistic(), von.Solver(samples=1, tolerance=1e-11)
    method = pvi.Method(covariance=covariance, delta=DELTA, temperature=temperature, damping=1.0)
    fed = toy.federation(method, solver, task, exchange)
    server = toy.iterate(fed, 12)[-1]
    close(server.lam, method.init_server(task).lam + duals(fed).sum(0))
    for k in range(task.num_clients):
        cohort = Cohort((k,), 0, task, fed.oracle)
        close(duals(fed)[k], natural_gradient(cohort, server.lam, solver, method.family) / temperature, 1e-9)


def natural_gradient(cohort, lam, solver, family):
    """-∇_mu E_q[f_k] at q = N(lam) for a cohort of one, with the solver's own samples."""
    given = cohort, lam.unsqueeze(0), solver._noise(cohort), family
    slope, hessian = solver._slope(*given), solver._hessian(*given)
    site = family.natural(family.mean(lam).unsqueeze(0), hessian) + family.linear(slope)
    return site[0]


def test_client_steps_to_convergence_make_the_server_step_a_bayesian_learning_rule(exchange):
    """Prop. 3.1, at a posterior that is not the answer."""
    task, solver = logistic(), von.Solver(samples=1, tolerance=1e-12)
    method = bayes_admm.Method(rho=4.0, **FULL)
    fed = toy.federation(method, solver, task, exchange)
    server = toy.iterate(fed, 1)[-1]
    sites = method.init_server(task).lam.clone()
    total = torch.zeros_like(server.lam)
    for k in range(task.num_clients):
        cohort = Cohort((k,), 1, task, fed.oracle)
        clients = method.init_clients(1, task, solver)
        for _ in range(15):
            clients, message = method.client_step(server, clients, cohort, solver)
        close(message["lam"].value[0], server.lam, 1e-9)
        sites += natural_gradient(cohort, server.lam, solver, method.family)
        total += clients.dual[0]
    alpha = 1 / (1 + 4.0 * task.num_clients)
    stepped = method._mix(server.lam, method.init_server(task).lam + total, task)
    close(stepped.lam, (1 - alpha) * server.lam + alpha * sites, 1e-8)


CONVERGING = [  # and the rounds until the error is below 1e-7
    (bayes_admm.Method(rho=0.5, delta=DELTA), 70),
    (pvi.Method(delta=DELTA), 100),
    (fedlap_cov.Method(delta=DELTA, damping="N_k/N"), 190),
    (fedlap_cov.Method(delta=DELTA, damping="1/K", warmup=10), 115),
]


@pytest.mark.parametrize("covariance", gaussian.FAMILIES)
@pytest.mark.parametrize(("method", "rounds"), CONVERGING)
def test_the_fixed_point_is_the_pooled_posterior_of_the_family(exchange, method, rounds, covariance):
    task = toy.task()
    fed = toy.federation(replace(method, covariance=covariance), exact.Solver(), task, exchange)
    close(toy.iterate(fed, rounds)[-1].lam, posterior(task, covariance), 1e-7)


def test_the_solvers_are_exact_on_linear_regression():
    """VON in one step; Laplace with the exact point optimum."""
    task = toy.task()
    cohort = Cohort((3, 1), 0, task, Oracle(task.module, task.layout, task.objective))
    for family in gaussian.FAMILIES.values():
        cavity = family.natural(torch.randn(2, toy.D, dtype=torch.float64), 0.4)
        start = family.natural(task.initial, 1.3)
        truth = exact.Solver().fit(cohort, cavity, 0.3, start, Nothing(), family).lam
        close(Delta().fit(cohort, cavity, 0.3, start, Nothing(), family).lam, truth)
        if family is gaussian.full:
            close(von.Solver(epochs=1).fit(cohort, cavity, 0.3, start, Nothing(), family).lam, truth)
            close(von.Solver(curvature="exact").fit(cohort, cavity, 0.3, start, Nothing(), family).lam, truth)
        close(von.Solver(lr=0.5, epochs=300).fit(cohort, cavity, 0.3, start, Nothing(), family).lam, truth, 1e-8)


@pytest.mark.parametrize(
    ("covariance", "damping", "rounds"), [("isotropic", 0.2, 150), ("diagonal", 1.0, 40), ("full", 1.0, 40)]
)
def test_bregman_admm_comes_to_the_same_fixed_point(exchange, covariance, damping, rounds):
    """Its steps on mu suit posteriors whose precisions are near 1."""
    task = scaled(0.1)
    method = bregman_admm.Method(rho=0.3, delta=DELTA, damping=damping, covariance=covariance)
    fed = toy.federation(method, exact.Solver(), task, exchange)
    close(toy.iterate(fed, rounds)[-1].lam, posterior(task, covariance), 1e-7)


def scaled(factor):
    """The toy data with smaller inputs and targets: less information in each example."""
    task = toy.task()
    train = replace(task.data.train, inputs=factor * task.data.train.inputs, targets=factor * task.data.train.targets)
    return replace(task, data=replace(task.data, train=train, test=train))


@pytest.mark.parametrize(("damping", "rounds"), [(0.25, 120), ("1/K", 150), ("N_k/N", 280)])
def test_fedlap_reaches_the_pooled_map(exchange, damping, rounds):
    task = toy.task()
    fed = toy.federation(fedlap.Method(delta=30.0, damping=damping), exact.Solver(), task, exchange)
    close(toy.iterate(fed, rounds)[-1].theta, toy.pooled(task, decay=30.0), 1e-7)


def test_fedlaps_first_round_weighs_clients_by_their_data(exchange):
    """N_k/N in the first rounds, then 1/K: the schedule of App. E.6."""
    task = toy.task()
    fed = toy.federation(fedlap.Method(delta=5.0, damping="1/K", warmup=1), exact.Solver(), task, exchange)
    server = fed.method.init_server(task)
    sizes = torch.tensor(toy.SIZES, dtype=torch.float64)
    for number, weights in enumerate((sizes / sizes.sum(), torch.full_like(sizes, 1 / toy.K))):
        before, start = duals(fed).clone(), server
        server, _ = fed.round(server, number)
        moved = duals(fed) - before
        for k in range(toy.K):
            hessian, shift = toy.gram(task, k)
            precision = hessian + 5.0 * torch.eye(toy.D, dtype=torch.float64)
            theta = torch.linalg.solve(precision, shift + 5.0 * start.theta - before[k])
            close(moved[k], weights[k] * 5.0 * (theta - start.theta))


@pytest.mark.parametrize("covariance", ["diagonal", "full"])
def test_with_the_ggn_every_site_precision_stays_positive_semidefinite(exchange, covariance):
    method = fedlap_cov.Method(delta=DELTA, covariance=covariance, damping=1.0)
    task = logistic()
    fed = toy.federation(method, laplace.Solver(point="sgd", lr=0.05, epochs=3), task, exchange)
    server = method.init_server(task)
    for number in range(6):
        server, _ = fed.round(server, number)
        precision = method.family.precision(duals(fed))
        matrix = precision if covariance == "full" else torch.diag_embed(precision)
        assert torch.linalg.eigvalsh(matrix).min() > -1e-12


@pytest.mark.parametrize(
    "method", [bayes_admm.Method(rho=0.2), bregman_admm.Method(), pvi.Method(), fedlap_cov.Method()]
)
def test_the_servers_total_is_the_sum_of_all_stored_duals(exchange, method):
    task = toy.task()
    fed = toy.federation(method, exact.Solver(), task, exchange, participation=0.4)
    server = toy.iterate(fed, 7)[-1]
    close(server.sites, method.init_server(task).lam + duals(fed).sum(0))
    partial = toy.federation(fedlap.Method(), exact.Solver(), task, exchange, participation=0.4)
    close(toy.iterate(partial, 7)[-1].duals, duals(partial).sum(0))


def test_pvi_comes_to_the_pooled_posterior_with_clients_missing_in_every_round(exchange):
    task = toy.task()
    fed = toy.federation(pvi.Method(delta=DELTA, damping=0.5), exact.Solver(), task, exchange, participation=0.4)
    close(toy.iterate(fed, 100)[-1].lam, posterior(task, "diagonal"), 1e-7)


def test_an_improper_posterior_is_named_and_not_clamped(exchange):
    """A step on mu may go anywhere: here the duals leave the server without a positive precision."""
    fed = toy.federation(bregman_admm.Method(rho=3.0, delta=DELTA), exact.Solver(), scaled(0.1), exchange)
    with pytest.raises(
        Diverged, match=r"round 4: bregman_admm: 1 precisions of the server's posterior are not.*damping"
    ):
        toy.iterate(fed, 200)


def test_a_clients_improper_posterior_is_named_too(exchange):
    fed = toy.federation(bregman_admm.Method(rho=10.0, delta=DELTA), exact.Solver(), scaled(0.1), exchange)
    with pytest.raises(ClientFailed, match=r"client \d failed in round 6: .*bregman_admm: 3 precisions.*damping"):
        toy.iterate(fed, 20)


def test_a_point_solver_is_refused_with_the_choices():
    assert pvi.Method().mismatch(sgd.Solver()) == "needs a posterior solver"
    for fits in (exact.Solver(), ivon.Solver(), laplace.Solver(), von.Solver()):
        assert not pvi.Method().mismatch(fits)
    with pytest.raises(ValueError, match=r"local=sgd: does not fit method=pvi, .*exact or ivon or laplace or von"):
        configuration.load(None, ["method=pvi", "local=sgd"])


def test_a_solver_for_a_prior_alone_is_refused_where_there_are_duals():
    assert "prior N(0, 1/delta) only" in pvi.Method().mismatch(ivon_opt.Solver())
    assert not centralized_vi.Method().mismatch(ivon_opt.Solver())


def test_the_duals_step_may_be_larger_than_rho(exchange):
    """Alg. 1's γ is a step of its own: dual_step = damping x rho is the same run, and one above rho another."""
    task, shared = toy.task(), {"rho": 0.3, "delta": DELTA}
    runs = {
        name: toy.federation(bayes_admm.Method(**shared, **more), exact.Solver(), task, exchange)
        for name, more in (("damped", {"damping": 0.5}), ("same", {"dual_step": 0.15}), ("free", {"dual_step": 0.35}))
    }
    ends = {name: toy.iterate(fed, 2)[-1] for name, fed in runs.items()}
    close(ends["damped"].lam, ends["same"].lam, 1e-13)
    fed = runs["free"]
    close(ends["free"].sites - fed.method.init_server(task).lam, duals(fed).sum(0))
    assert (ends["free"].lam - ends["same"].lam).abs().max() > 1e-3
    with pytest.raises(ValueError, match=r"method\.dual_step.*method\.damping=1"):
        bayes_admm.Method(damping=0.5, dual_step=0.2)


def test_the_released_bregman_admm_steps_the_other_way(exchange):
    """u += rho Δ(m² + 1/s) in the authors' program, u -= 2 rho Δ(m² + 1/s) by the Lagrangian; v alike."""
    task = scaled(0.1)
    first = {}
    for sign in ("lagrangian", "released"):
        method = bregman_admm.Method(rho=0.3, delta=DELTA, damping=0.1, sign=sign)
        fed = toy.federation(method, exact.Solver(), task, exchange)
        toy.iterate(fed, 1)
        first[sign] = duals(fed)
    close(first["released"][:, 0], first["lagrangian"][:, 0], 0.0)
    close(first["released"][:, 1], -0.5 * first["lagrangian"][:, 1])
