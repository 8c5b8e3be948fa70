"""FedGVI: robust losses and Rényi's divergence against their definitions, and what is left without them."""

import pytest
import torch
from torch.autograd import grad

from fedddp.clients.oracle import Oracle
from fedddp.core import gaussian
from fedddp.core.objective import Binary, CrossEntropy, SquaredError
from fedddp.core.params import Layout
from fedddp.local import exact, ivon, von
from fedddp.methods import fedgvi, pvi
from fedddp.methods._robust import robust
from tests import toy
from tests.methods import given
from tests.methods.test_barycentres import gaussians, normal
from tests.methods.test_bayesian_duality import DELTA, close

ROBUST = ["generalised_cross_entropy", "density_power"]


def logits():
    generator = torch.Generator().manual_seed(3)
    outputs = torch.randn(8, 5, generator=generator, dtype=torch.float64, requires_grad=True)
    return outputs, torch.randint(5, (8,), generator=generator)


def renyi(q, c, alpha):
    """Rényi's divergence of two of torch's Gaussians, by its definition."""
    one, two = q.covariance_matrix, c.covariance_matrix
    between, apart = (1 - alpha) * one + alpha * two, q.mean - c.mean
    size = torch.logdet(between) - (1 - alpha) * torch.logdet(one) - alpha * torch.logdet(two)
    return alpha / 2 * apart @ torch.linalg.solve(between, apart) + size / (2 * (1 - alpha))


def test_without_robustness_it_is_pvi(exchange):
    task, settings = toy.task(), {"delta": DELTA, "damping": 0.2, "temperature": 0.5}
    methods = fedgvi.Method(loss="log", **settings), pvi.Method(**settings)
    runs = [toy.iterate(toy.federation(made, exact.Solver(), task, exchange), 4) for made in methods]
    for one, other in zip(*runs, strict=True):
        assert torch.equal(one.lam, other.lam)


@pytest.mark.parametrize("kind", ROBUST)
def test_a_robust_loss_goes_to_the_log_loss(kind):
    outputs, targets = logits()
    close(robust(CrossEntropy(), kind, 1e-9).loss(outputs, targets), CrossEntropy().loss(outputs, targets), 1e-7)


def test_robust_losses_against_their_definitions():
    outputs, targets = logits()
    chances, s = outputs.softmax(1), 0.7
    right = chances.gather(1, targets.unsqueeze(1)).squeeze(1)
    found = robust(CrossEntropy(), "generalised_cross_entropy", s).loss(outputs, targets)
    close(found, (1 - right**s) / s)
    plain = grad(CrossEntropy().loss(outputs, targets).sum(), outputs)[0]
    close(grad(found.sum(), outputs)[0], right.unsqueeze(1) ** s * plain)
    power = (1 + s) / s * (1 - right**s) + (chances ** (1 + s)).sum(1) - 1
    close(robust(CrossEntropy(), "density_power", s).loss(outputs, targets), power)


def test_a_robust_loss_of_two_classes_and_one_logit():
    outputs, targets = logits()
    yes = outputs[:, :1]
    both = torch.cat([torch.zeros_like(yes), yes], 1)
    for kind in ROBUST:
        one, two = robust(Binary(), kind, 0.4), robust(CrossEntropy(), kind, 0.4)
        close(one.loss(yes, targets % 2), two.loss(both, targets % 2))
    with pytest.raises(ValueError, match="needs a classification"):
        robust(SquaredError(), "density_power", 0.4)


@pytest.mark.parametrize("kind", ROBUST)
def test_clients_see_its_gradient(kind):
    """By the chain's own backward pass, and by vmap."""
    task = given.task(given.mlp(), (5,))
    loss = robust(CrossEntropy(), kind, 0.5)
    inputs, targets = task.data.train.inputs[:6].view(2, 3, 5), task.data.train.targets[:6].view(2, 3)
    theta = given.around(task)[:2].requires_grad_()
    outputs = [task.outputs(theta[row], inputs[row]) for row in range(2)]
    wanted = grad(sum(loss.loss(o, t).mean() for o, t in zip(outputs, targets, strict=True)), theta)[0]
    for vectorise in (True, False):
        oracle = Oracle(task.module, Layout.of(task.module), loss, vectorise)
        close(oracle(theta.detach(), inputs, targets)[0], wanted)


@pytest.mark.parametrize("covariance", gaussian.FAMILIES)
def test_the_cavitys_stand_in_has_the_gradient_of_renyis_divergence(covariance):
    lam, _ = gaussians(covariance)
    family, alpha = gaussian.FAMILIES[covariance], 0.6
    q = lam[0].clone().requires_grad_()
    stand_in = fedgvi.renyi_cavity(lam[0], lam[1:], alpha, family)
    for other, factor in zip(lam[1:], stand_in, strict=True):
        wanted = grad(renyi(normal(family, q), normal(family, other), alpha), q)[0]
        spread = torch.linalg.inv(normal(family, q).precision_matrix)
        mean = family.mean(q)
        energy = _energy(family, factor, mean, spread) - 0.5 * torch.logdet(spread)
        close(grad(energy, q)[0], wanted)
    close(fedgvi.renyi_cavity(lam[0], lam[1:], 1 - 1e-12, family), lam[1:], 1e-8)


def _energy(family, factor, mean, spread):
    """E_q of a factor's energy, proper or not."""
    precision = family.precision(factor)
    matrix = precision if family is gaussian.full else torch.diag_embed(precision.expand(len(mean)))
    return 0.5 * (matrix * (spread + mean.outer(mean))).sum() - family.shift(factor) @ mean


def test_at_a_fixed_point_the_objective_with_renyis_divergence_is_flat(exchange):
    """One client, whose cavity is the prior: E_q[f] + D(q || prior) has no slope at the server's posterior."""
    task, alpha = toy.task(sizes=(12,)), 0.5
    method = fedgvi.Method(loss="log", alpha=alpha, covariance="full", delta=DELTA, damping=1.0)
    states = toy.iterate(toy.federation(method, exact.Solver(), task, exchange), 200)
    close(states[-1].lam, states[-2].lam, 1e-12)
    lam = states[-1].lam.clone().requires_grad_()
    q, (gram, shift) = normal(gaussian.full, lam), toy.gram(task, 0)
    prior = normal(gaussian.full, states[0].lam)
    loss = 0.5 * (gram * (q.covariance_matrix + q.mean.outer(q.mean))).sum() - shift @ q.mean
    slope = grad(loss + renyi(q, prior, alpha), lam)[0]
    close(slope, torch.zeros_like(slope), 1e-8)
    assert (states[1].lam - states[-1].lam).norm() > 1e-3


def test_solvers_that_see_the_plain_loss_are_refused():
    assert "local.name=ivon" in fedgvi.Method().mismatch(von.Solver())
    assert not fedgvi.Method(loss="log").mismatch(von.Solver())
    assert not fedgvi.Method().mismatch(ivon.Solver())
