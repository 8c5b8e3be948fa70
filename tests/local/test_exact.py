"""The exact solver against closed forms on linear regression, and what it refuses."""

from dataclasses import replace

import pytest
import torch

from fedddp.clients.cohort import Cohort
from fedddp.clients.oracle import Oracle
from fedddp.core.gaussian import FAMILIES, diagonal, full, isotropic
from fedddp.core.rng import stream
from fedddp.local import exact
from fedddp.rounds.solver import Nothing
from tests import toy
from tests.methods import given

IDS, WEIGHT = (3, 1, 0), 0.3
EYE = torch.eye(toy.D, dtype=torch.float64)


def close(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def cohort_of(task, ids=IDS):
    return Cohort(ids, 0, task, Oracle(task.module, task.layout, task.objective))


def draw(*shape):
    return torch.randn(*shape, generator=stream("exact"), dtype=torch.float64)


def site_of(family, rows=None):
    """A proper factor for all clients, or one for each of `rows`."""
    shape = () if rows is None else (rows,)
    mean, half = draw(*shape, toy.D), draw(*shape, toy.D, toy.D)
    matrix = half @ half.mT + 0.5 * EYE
    return family.natural(mean, part_of(matrix, family))


def part_of(matrix, family):
    """The part of precision matrices that a family holds."""
    values = matrix.diagonal(dim1=-2, dim2=-1)
    return {"full": matrix, "diagonal": values, "isotropic": values.mean(-1, keepdim=True)}[family.name]


def answer(task, client, site, family):
    """theta and A of one client, from its own XᵀX and Xᵀy."""
    matrix, shift = toy.gram(task, client)
    if site is not None:
        own = family.precision(site)
        matrix = matrix + (own if family is full else own * EYE)
        shift = shift + family.shift(site)
    return torch.linalg.solve(matrix, shift), matrix


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("rows", ["none", "shared", "own"])
@pytest.mark.parametrize("starts", ["shared", "own"])
def test_the_point_is_the_minimiser(family, rows, starts):
    task = toy.task()
    site = {"none": None, "shared": site_of(family), "own": site_of(family, len(IDS))}[rows]
    start = draw(toy.D) if starts == "shared" else draw(len(IDS), toy.D)
    fit = exact.Solver().minimise(cohort_of(task), start, Nothing(), site, family)
    for row, client in enumerate(IDS):
        own = site[row] if rows == "own" else site
        close(fit.theta[row], answer(task, client, own, family)[0])
    assert fit.memory == Nothing()
    assert fit.steps.tolist() == [1] * len(IDS)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_posterior_in_closed_form(family):
    task, cavity = toy.task(), site_of(family, len(IDS))
    fit = exact.Solver().fit(cohort_of(task), cavity, WEIGHT, site_of(family), Nothing(), family)
    for row, client in enumerate(IDS):
        theta, matrix = answer(task, client, cavity[row], family)
        close(family.mean(fit.lam[row]), theta)
        close(family.precision(fit.lam[row]), part_of(matrix, family) / WEIGHT)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_no_other_gaussian_of_the_family_is_better(family):
    """The gradient of E_q[f_k + energy] + w E_q[log q] is 0 there, by autograd; and every step aside is worse."""
    task, cavity = toy.task(), site_of(family, 1)
    found = exact.Solver().fit(cohort_of(task, (3,)), cavity, WEIGHT, site_of(family), Nothing(), family).lam[0]

    def objective(lam):
        return expected(task, 3, cavity[0], lam, family)

    leaf = found.clone().requires_grad_()
    (slope,) = torch.autograd.grad(objective(leaf), leaf)
    if family is full:  # only symmetric matrices are precisions
        slope = torch.cat([slope[:1], (slope[1:] + slope[1:].mT) / 2])
    close(slope, torch.zeros_like(slope), 1e-9)
    for way in 0.05 * draw(20, toy.D + 1, toy.D):
        aside = family.natural(family.mean(found) + way[0], nearby(family.precision(found), way[1:], family))
        assert objective(aside) > objective(found)


def nearby(precision, way, family):
    """Another positive precision."""
    if family is full:
        turn = torch.linalg.matrix_exp(way)
        return turn @ precision @ turn.mT
    return precision * way[0, : len(precision)].exp()


def expected(task, client, cavity, lam, family):
    """E_q[f_k + energy(cavity)] + w E_q[log q], up to a constant."""
    matrix, shift = toy.gram(task, client)
    own = family.precision(cavity)
    matrix, shift = matrix + (own if family is full else own * EYE), shift + family.shift(cavity)
    mean, precision = family.mean(lam), family.precision(lam)
    precision = precision if family is full else precision * EYE
    loss = 0.5 * mean @ matrix @ mean - shift @ mean + 0.5 * (matrix * torch.linalg.inv(precision)).sum()
    return loss + WEIGHT * 0.5 * torch.logdet(precision)


def test_a_start_at_the_optimum_is_fine():
    """There the gradient is 0 already, and what is left is rounding."""
    task, solver = toy.task(), exact.Solver()
    cohort = cohort_of(task)
    once = solver.minimise(cohort, task.initial, Nothing()).theta
    close(solver.minimise(cohort, once, Nothing()).theta, once)


def test_of_several_minimisers_the_nearest():
    """Three examples and four parameters."""
    task = toy.task(sizes=(3, 3))
    theta = exact.Solver().minimise(cohort_of(task, (0, 1)), task.initial, Nothing()).theta
    for k in range(2):
        x, y = task.data.train.inputs[3 * k : 3 * k + 3], task.data.train.targets[3 * k : 3 * k + 3]
        close(theta[k], task.initial + torch.linalg.pinv(x) @ (y - x @ task.initial), 1e-8)


def test_in_single_precision():
    task = toy.task()
    data = replace(task.data.train, inputs=task.data.train.inputs.float(), targets=task.data.train.targets.float())
    single = replace(
        task,
        module=torch.nn.Linear(toy.D, 1, bias=False),
        data=replace(task.data, train=data, test=data),
        initial=task.initial.float(),
        dtype=torch.float32,
    )
    site = site_of(diagonal)
    found = exact.Solver().minimise(cohort_of(single), single.initial, Nothing(), site.float()).theta
    assert found.dtype == torch.float32
    close(found.double(), exact.Solver().minimise(cohort_of(task), task.initial, Nothing(), site).theta, 1e-4)


def test_the_one_step_is_watched():
    seen = []
    task = toy.task()
    fit = exact.Solver().minimise(
        cohort_of(task), task.initial, Nothing(), watch=lambda number, theta: seen.append((number, theta))
    )
    assert [number for number, _ in seen] == [0]
    assert torch.equal(seen[0][1], fit.theta)


@pytest.mark.parametrize("precision", [0.0, 2.0])
def test_a_network_is_refused_with_the_remedy(precision):
    task = given.task(given.mlp(), (5,))
    site = diagonal.natural(torch.zeros_like(task.initial), precision) if precision else None
    cohort, solver = cohort_of(task, (1, 2)), exact.Solver()
    with pytest.raises(ValueError, match=r"quadratic.*squared_error.*local\.name=adam or sgd.*laplace, von or ivon"):
        solver.minimise(cohort, task.initial, Nothing(), site)


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_a_networks_posterior_is_refused_too(family):
    task = given.task(given.mlp(), (5,))
    prior = family.natural(torch.zeros_like(task.initial), 1.0)
    with pytest.raises(ValueError, match=r"quadratic.*squared_error"):
        exact.Solver().fit(cohort_of(task, (1, 2)), prior.expand(2, *prior.shape), 1.0, prior, Nothing(), family)


def test_a_site_that_leaves_no_minimum_is_refused():
    task = toy.task()
    site = isotropic.natural(torch.zeros(toy.D, dtype=torch.float64), -1e3)
    with pytest.raises(ValueError, match=r"no minimum.*method\.damping"):
        exact.Solver().minimise(cohort_of(task), task.initial, Nothing(), site, isotropic)


def test_a_saddle_with_a_positive_diagonal_is_no_posterior():
    task = toy.task()
    hessian, _ = toy.gram(task, 3)
    cavity = diagonal.natural(torch.zeros(toy.D, dtype=torch.float64), 1e-3 - hessian.diagonal())[None]
    with pytest.raises(ValueError, match="no minimum"):
        exact.Solver().fit(cohort_of(task, (3,)), cavity, 1.0, site_of(diagonal), Nothing(), diagonal)


def test_turned_gradients_are_refused():
    task = toy.task()
    steered = cohort_of(task).steered(lambda _, grad, batch: 2 * grad)
    with pytest.raises(ValueError, match=r"changes gradients.*local\.name=adam or sgd"):
        exact.Solver().minimise(steered, task.initial, Nothing())
