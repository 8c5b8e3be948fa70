"""FedEP and FedSEP: exact moments of Gaussian clients give the pooled posterior; sampled ones come near it."""

import pytest
import torch

from fedddp.clients.cohort import Cohort
from fedddp.clients.oracle import Oracle
from fedddp.core import gaussian
from fedddp.local import exact, iasg, ivon, langevin, sgd, von
from fedddp.methods import fedep, fedsep, pvi
from fedddp.rounds.solver import Nothing, Samples
from tests import toy
from tests.methods.test_bayesian_duality import DELTA, Delta, close, posterior

METHODS = [fedep.Method, fedsep.Method]
FULL = {"covariance": "full", "delta": DELTA, "damping": 1.0}


@pytest.mark.parametrize("method", METHODS)
def test_one_round_gives_the_pooled_posterior_of_gaussian_clients_and_the_next_changes_nothing(exchange, method):
    task = toy.task()
    _, first, second = toy.iterate(toy.federation(method(**FULL), exact.Solver(), task, exchange), 2)
    close(first.lam, posterior(task))
    close(second.lam, first.lam)


@pytest.mark.parametrize("covariance", ["diagonal", "isotropic"])
def test_with_a_posterior_solver_it_is_pvi(exchange, covariance):
    """In families that do not hold the clients' posteriors, tempered and damped; iterate by iterate."""
    task, settings = toy.task(), {"covariance": covariance, "delta": DELTA, "damping": 0.2, "temperature": 0.5}
    methods = fedep.Method(**settings), pvi.Method(**settings)
    runs = [toy.iterate(toy.federation(made, exact.Solver(), task, exchange), 4) for made in methods]
    for one, other in zip(*runs, strict=True):
        close(one.lam, other.lam)


def test_without_memory_the_site_is_the_mean_of_all_sites(exchange):
    """The first round is FedEP's; from the second on, outside the clients' family, the two part."""
    task, settings = toy.task(), {"delta": DELTA, "damping": 0.2}
    both = [toy.iterate(toy.federation(kind(**settings), exact.Solver(), task, exchange), 2) for kind in METHODS]
    close(both[0][1].lam, both[1][1].lam)
    assert (both[0][2].lam - both[1][2].lam).norm() > 1e-3


@pytest.mark.parametrize("covariance", gaussian.FAMILIES)
def test_moments_of_samples_against_torch(covariance):
    """Of all samples, of those a client made, and of one alone, which leaves the server's covariance."""
    family = gaussian.FAMILIES[covariance]
    drawn = torch.randn(2, 50, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    lam = family.natural(torch.zeros(3, dtype=torch.float64), 2.0)
    found = fedep.moments(Samples(drawn, torch.tensor([50, 1])), lam, family, 10.0)
    spread = (10 * torch.eye(3, dtype=torch.float64) / 2 + 49 * drawn[0].T.cov()) / 59
    diagonal = spread.diagonal()
    kept = {"full": spread, "diagonal": diagonal, "isotropic": diagonal.mean()[None]}[covariance]
    close(family.precision(found)[0], kept.inverse() if covariance == "full" else 1 / kept)
    close(family.mean(found), torch.stack([drawn[0].mean(0), drawn[1, 0]]))
    close(family.precision(found)[1], family.precision(lam))


def test_paths_that_do_not_move_raise_the_precision_by_so_much_in_all_rounds_together():
    """1 + T (ℓ - 1)/w: linear in the rounds, where a fixed weight would multiply it in each."""
    lam = gaussian.diagonal.natural(torch.ones(3, dtype=torch.float64), 2.0)
    still, weight, rounds = Samples(torch.ones(1, 18, 3, dtype=torch.float64), torch.tensor([18])), 1.5, 40
    for number in range(rounds):
        lam = fedep.moments(still, lam, gaussian.diagonal, weight, number)[0]
    close(gaussian.diagonal.precision(lam), 2.0 * (1 + rounds * 17 / weight) * torch.ones(3, dtype=torch.float64))


def test_langevin_samples_have_the_tilted_moments():
    """Full batches on linear regression: the stationary covariance of a step h is τ (A - hA²/2)⁻¹ in closed form.

    1,500 steps with h λ_min = 0.14 are some 100 independent samples of each client, so that a deviation is known to
    1/√200 = 7 % and a mean to a tenth of it; the bounds are four of those.
    """
    task, temperature = toy.task(), 0.25
    prior = gaussian.full.natural(torch.zeros(toy.D, dtype=torch.float64), 20.0)
    solver = langevin.Solver(lr=0.2, epochs=1600, batch_size=100, burn_in=100, steps_per_sample=1)
    cohort = Cohort((3, 1), 0, task, Oracle(task.module, task.layout, task.objective))
    _, samples = solver.sample(
        cohort, torch.zeros(toy.D, dtype=torch.float64), Nothing(), prior, gaussian.full, temperature
    )
    for row, client in enumerate(cohort.ids):
        gram, shift = toy.gram(task, client)
        matrix, step = gram + gaussian.full.precision(prior), 0.2 / int(task.num_examples[client])
        covariance = temperature * torch.linalg.inv(matrix - step / 2 * matrix @ matrix)
        deviation = covariance.diagonal().sqrt()
        drawn = samples.theta[row, : int(samples.own[row])]
        assert ((drawn.mean(0) - torch.linalg.solve(matrix, shift)).abs() < 0.4 * deviation).all()
        assert ((drawn.std(0) / deviation - 1).abs() < 0.28).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("covariance", gaussian.FAMILIES)
def test_laplace_and_natural_gradients_are_exact_on_gaussian_clients(exchange, method, covariance):
    """Iterate by iterate: Laplace in every family, its point found exactly; VON in the full one, by Newton steps."""
    task, settings = toy.task(), {"covariance": covariance, "delta": DELTA, "damping": 0.2, "temperature": 0.5}
    solvers = [exact.Solver(), Delta(), *([von.Solver()] if covariance == "full" else [])]
    runs = [toy.iterate(toy.federation(method(**settings), local, task, exchange), 3) for local in solvers]
    for one, *others in zip(*runs, strict=True):
        for other in others:
            close(one.lam, other.lam, 1e-8)


def test_sampled_moments_give_about_the_pooled_posterior(exchange):
    """Some 100 independent samples of each client: its precision is known to 14 %, their sum to half of that.

    Two sampling errors of the mean are amplified by the distances between clients, so it is held to a tenth of those.
    """
    task = toy.task()
    local = langevin.Solver(lr=0.2, epochs=1600, batch_size=100, burn_in=100, steps_per_sample=1)
    made = fedep.Method(**FULL, pseudo_samples=0.0)
    last = toy.iterate(toy.federation(made, local, task, exchange, width=5), 1)[-1]
    wanted = posterior(task)
    root = torch.linalg.cholesky(gaussian.full.precision(wanted))
    white = torch.linalg.solve_triangular(root, gaussian.full.precision(last.lam), upper=False)
    white = torch.linalg.solve_triangular(root, white.mT, upper=False)
    assert abs(float(white.diagonal().mean()) - 1) < 0.3
    modes = [torch.linalg.solve(*toy.gram(task, k)) for k in range(toy.K)]
    apart = torch.stack(modes).std(0).norm()
    assert (last.theta - gaussian.full.mean(wanted)).norm() < 0.1 * apart


def test_what_gives_no_tilted_moments_is_refused():
    assert "fits diagonal Gaussians" in fedep.Method(covariance="full").mismatch(ivon.Solver())
    assert not fedep.Method(covariance="full").mismatch(langevin.Solver())
    assert "needs a sampling or a posterior solver" in fedep.Method().mismatch(sgd.Solver())
    assert "langevin" in fedep.Method(temperature=0.1).mismatch(iasg.Solver())
    assert not fedep.Method(temperature=0.1).mismatch(langevin.Solver())
