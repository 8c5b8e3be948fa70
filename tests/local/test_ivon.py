"""IVON: ivon-opt's iterates where the two coincide, and what is ours alone."""

from dataclasses import replace

import pytest
import torch
from ivon import IVON

from fedddp.clients.cohort import Cohort
from fedddp.clients.oracle import Oracle
from fedddp.config import loading as configuration
from fedddp.core.gaussian import diagonal
from fedddp.core.rng import Streams
from fedddp.local import ivon, ivon_opt
from fedddp.methods import pvi
from fedddp.runs.build import make_task
from tests import toy
from tests.small import MODELS, settings

WEIGHT, DELTA = 0.3, 0.8
AS_THEIRS = {"noise": "normal"}


@pytest.fixture(scope="module")
def task():
    words = settings("fedavg", *MODELS["mlp"], "federation.dtype=float64")
    return make_task(configuration.load(None, words), torch.device("cpu"))


def cohort_of(task, *ids, number=0):
    return Cohort(ids, number, task, Oracle(task.module, task.layout, task.objective))


def prior(task, rows, weight=WEIGHT):
    lam = diagonal.natural(torch.zeros_like(task.initial), weight * DELTA)
    return lam.expand(rows, -1, -1)


def start(task):
    return diagonal.natural(task.initial, DELTA)


def theirs(task, cohort, solver, rounds=1):
    """The same run by ivon-opt: one client, prior N(0, 1/DELTA), noise from the client's own stream."""
    layout, count = task.layout, int(cohort.num_examples)
    params = [v.clone().requires_grad_() for v in layout.views(task.initial).values()]
    ess = count / WEIGHT
    optimiser = IVON(
        params,
        lr=solver.lr,
        ess=ess,
        hess_init=solver.hess_init,
        beta1=solver.beta1,
        beta2=solver.beta2,
        weight_decay=DELTA / ess,
        mc_samples=solver.samples,
        hess_approx=solver.hess_approx,
        rescale_lr=solver.rescale_lr,
    )
    for number in range(rounds):
        torch.manual_seed(task.streams.key("noise", number, cohort.ids[0]))
        for batch in replace(cohort, round=number).batches(solver.epochs, solver.batch_size):
            for _ in range(solver.samples):
                with torch.enable_grad(), optimiser.sampled_params(train=True):
                    named = dict(zip(layout.names, params, strict=True))
                    outputs = torch.func.functional_call(task.module, named, (batch.inputs[0],))
                    weights = 1.0 if batch.weights is None else batch.weights[0]
                    losses = task.objective.loss(outputs, batch.targets[0]) * weights
                    for p in params:
                        p.grad = None
                    (losses.sum() / (weights.sum() if batch.weights is not None else len(losses))).backward()
            optimiser.step()
    group = optimiser.param_groups[0]
    mean = torch.cat([p.detach().flatten() for p in params])
    return diagonal.natural(mean, ess * (group["hess"] + group["weight_decay"]))


@pytest.mark.parametrize(
    "more",
    [{}, {"hess_approx": "gradsq"}, {"samples": 3}, {"rescale_lr": True, "lr": 0.1}],
    ids=["price", "gradsq", "three samples", "rescaled"],
)
def test_iterates_are_those_of_ivon_opt(task, more):
    usual = {"lr": 0.005, "epochs": 3, "batch_size": 7, "beta2": 0.99, "hess_init": 0.25, **AS_THEIRS}
    solver = ivon.Solver(**usual | more)
    cohort = cohort_of(task, 0)
    found = solver.fit(cohort, prior(task, 1), WEIGHT, start(task), solver.memory(task, 1), diagonal)
    torch.testing.assert_close(found.lam[0], theirs(task, cohort, solver), rtol=1e-9, atol=1e-9)
    assert (found.lam[0] - start(task)).norm() > 1


def test_noise_of_a_generator_is_refused_on_a_device(task):
    """It would be sent there in every step."""
    there, solver = (
        replace(task, device=torch.device("meta"), initial=task.initial.to("meta")),
        ivon.Solver(**AS_THEIRS),
    )
    given = prior(there, 1), WEIGHT, start(there), solver.memory(there, 1), diagonal
    with pytest.raises(ValueError, match=r"local\.noise=normal: is drawn by the host.* use local\.noise=quantile"):
        solver.fit(cohort_of(there, 0), *given)


def test_momentum_and_steps_are_kept_so_that_two_rounds_are_one_run(task):
    """With the precision carried over, a second round goes on where ivon-opt would."""
    solver = ivon.Solver(lr=0.005, epochs=2, batch_size=7, beta2=0.99, hess_init=0.25, **AS_THEIRS)
    lam, memory = start(task), solver.memory(task, 1)
    for number in range(2):
        lam, memory, _ = solver.fit(
            cohort_of(task, 0, number=number), prior(task, 1), WEIGHT, lam.squeeze(0), memory, diagonal
        )
    torch.testing.assert_close(lam[0], theirs(task, cohort_of(task, 0), solver, rounds=2), rtol=1e-9, atol=1e-9)
    assert memory.taken.tolist() == [2 * int(cohort_of(task, 0).steps(2, 7))]


def test_multipliers_enter_as_in_algorithm_2(task):
    """h, δ, v and u of the paper's listing, by hand: ours knows only the cavity and where to start."""
    solver = ivon.Solver(lr=0.005, epochs=1, batch_size=7, beta2=0.99, hess_init=0.0, noise="normal")
    cohort = cohort_of(task, 0, number=3)
    generator = torch.Generator().manual_seed(3)
    size, count = len(task.initial), int(cohort.num_examples)
    draw = lambda scale: scale * torch.randn(size, generator=generator, dtype=torch.float64)  # noqa: E731
    v, u, anchor, precision = draw(0.5), draw(0.2), draw(0.3), 1 + draw(1.0).square()
    server = diagonal.natural(anchor, precision)
    cavity = WEIGHT * server - torch.stack([v, u])
    found = solver.fit(cohort, cavity[None], WEIGHT, server, solver.memory(task, 1), diagonal)

    ess, m, h, g = count / WEIGHT, anchor.clone(), torch.zeros(size, dtype=torch.float64), 0.0
    delta, v, u, noise = precision / ess, v / count, u / count, cohort.noise()
    for t, batch in enumerate(cohort.batches(1, 7), start=1):
        z = noise.fill(torch.empty(1, size, dtype=torch.float64))[0]
        sigma = (ess * (h + delta)).rsqrt()
        ghat = cohort.grad((m + z * sigma)[None], batch)[0]
        hhat = ghat * z / sigma - u
        g = 0.9 * g + 0.1 * ghat
        h = 0.99 * h + 0.01 * hhat + 0.5 * 0.01**2 * (h - hhat) ** 2 / (h + delta)
        m = m - 0.005 * (g / (1 - 0.9**t) + v - u * m + delta * (m - anchor)) / (h + delta)
    torch.testing.assert_close(found.lam[0], diagonal.natural(m, ess * (h + delta)), rtol=1e-9, atol=1e-9)


def test_precisions_stay_positive_under_a_negative_cavity(task):
    cavity = diagonal.natural(torch.zeros_like(task.initial), -50.0).expand(2, -1, -1)
    solver = ivon.Solver(lr=1e-4, epochs=5, beta2=0.5, hess_init=0.0)
    found = solver.fit(cohort_of(task, 0, 1), cavity, WEIGHT, start(task), solver.memory(task, 2), diagonal)
    assert not diagonal.improper(found.lam).any()


def test_curvature_starts_from_hess_init_in_the_first_round_only_or_in_all(task):
    still = {"lr": 1e-12, "epochs": 1, "batch_size": 1000, "beta2": 1 - 1e-12, "hess_init": 0.5}

    def precision(number, **more):
        solver, cohort = ivon.Solver(**still, **more), cohort_of(task, 0, number=number)
        lam = solver.fit(cohort, prior(task, 1), WEIGHT, start(task), solver.memory(task, 1), diagonal).lam
        return float(diagonal.precision(lam).mean())

    raised = DELTA + 0.5 * int(task.num_examples[0]) / WEIGHT
    assert precision(0) == pytest.approx(raised)
    assert precision(1) == pytest.approx(DELTA)
    assert precision(1, hess_restart=True) == pytest.approx(raised)


def test_a_client_does_not_depend_on_its_neighbours(task):
    """Each row has its own data, noise and effective sample size."""
    solver = ivon.Solver(lr=0.005, epochs=2, batch_size=7, beta2=0.99)
    order = task.num_examples.argsort(descending=True, stable=True).tolist()[:3]
    together = solver.fit(
        cohort_of(task, *order), prior(task, 3), WEIGHT, start(task), solver.memory(task, 3), diagonal
    )
    for row, client in enumerate(order):
        alone = solver.fit(
            cohort_of(task, client), prior(task, 1), WEIGHT, start(task), solver.memory(task, 1), diagonal
        )
        torch.testing.assert_close(together.lam[row], alone.lam[0], rtol=1e-9, atol=1e-9)


def test_it_finds_the_posterior_of_linear_regression():
    """Up to the noise that a rate leaves: √(lr/2) = 0.07 of a standard deviation of the mean, and as much for β2."""
    regression = replace(toy.task(), streams=Streams(1))
    cohort = cohort_of(regression, 3)
    gram, shift = toy.gram(regression, 3)
    solver = ivon.Solver(lr=0.01, epochs=1500, batch_size=30, beta2=0.997, hess_init=0.5)
    cavity = diagonal.natural(torch.zeros(1, toy.D, dtype=torch.float64), DELTA)
    begin = diagonal.natural(regression.initial, DELTA)
    lam = solver.fit(cohort, cavity, 1.0, begin, solver.memory(regression, 1), diagonal).lam[0]
    truth = torch.linalg.solve(gram + DELTA * torch.eye(toy.D, dtype=torch.float64), shift)
    torch.testing.assert_close(diagonal.mean(lam), truth, rtol=0, atol=0.3 * float(gram.diagonal().rsqrt().max()))
    torch.testing.assert_close(diagonal.precision(lam), gram.diagonal() + DELTA, rtol=0.2, atol=0)


@pytest.mark.parametrize("covariance", ["full", "isotropic"])
def test_only_diagonal_gaussians(covariance):
    assert ivon.Solver.families == ivon_opt.Solver.families == ("diagonal",)
    why = pvi.Method(covariance=covariance).mismatch(ivon.Solver())
    assert why == f"has method.covariance={covariance}, and that solver fits diagonal Gaussians"
    assert not pvi.Method(covariance="diagonal").mismatch(ivon.Solver())
    with pytest.raises(ValueError, match=f"local=ivon: .*covariance={covariance}, .*exact or laplace or von"):
        configuration.load(None, ["method=pvi", "local=ivon", f"method.covariance={covariance}"])


def test_the_package_itself_is_a_solver_too(task):
    """local.name=ivon_opt: over two rounds, with its step counter, the same as ours."""
    more = {"lr": 0.1, "epochs": 2, "batch_size": 7, "beta2": 0.99, "hess_init": 0.25, "rescale_lr": True, **AS_THEIRS}
    order = task.num_examples.argsort(descending=True, stable=True).tolist()[:2]
    found = []
    for solver in (ivon.Solver(**more), ivon_opt.Solver(**more)):
        lam, memory = start(task), solver.memory(task, 2)
        for number in range(2):
            cohort = cohort_of(task, *order, number=number)
            lams, memory, steps = solver.fit(cohort, prior(task, 2), WEIGHT, lam, memory, diagonal)
            lam = lams.mean(0)
        found.append((lams, memory.taken, steps))
    torch.testing.assert_close(found[0], found[1], rtol=1e-9, atol=1e-9)


def test_the_package_takes_no_other_prior(task):
    solver = ivon_opt.Solver()
    cavity = diagonal.natural(task.initial[None], 1.0)
    with pytest.raises(ValueError, match=r"use local\.name=ivon"):
        solver.fit(cohort_of(task, 0), cavity, 1.0, start(task), solver.memory(task, 1), diagonal)
