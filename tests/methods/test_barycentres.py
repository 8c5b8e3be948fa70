"""BA-BFL's barycentres of Gaussians, FedIvon, and what they come to on Gaussian clients."""

from itertools import combinations

import pytest
import torch

from fedddp.core import gaussian
from fedddp.local import exact
from fedddp.methods import ba_bfl, fedivon
from fedddp.methods._barycentre import RULES, transported
from tests import toy
from tests.methods.test_bayesian_duality import DELTA, close, posterior


def gaussians(covariance, count=3, size=4):
    """Random ones, and weights that add to 1."""
    generator = torch.Generator().manual_seed(5)
    mean = torch.randn(count, size, generator=generator, dtype=torch.float64)
    root = torch.randn(count, size, size, generator=generator, dtype=torch.float64)
    matrix = root @ root.mT + torch.eye(size, dtype=torch.float64)
    diagonal = matrix.diagonal(dim1=1, dim2=2)
    precision = {"full": matrix, "diagonal": diagonal, "isotropic": diagonal[:, :1]}[covariance]
    weight = torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64)
    return gaussian.FAMILIES[covariance].natural(mean, precision), weight


def normal(family, lam):
    """As torch's multivariate normal."""
    size = lam.shape[-1] - 1 if family is gaussian.isotropic else lam.shape[-1]
    precision = family.precision(lam)
    matrix = (
        precision
        if family is gaussian.full
        else torch.diag_embed(precision.expand(*lam.shape[:-1], size) if family is gaussian.isotropic else precision)
    )
    return torch.distributions.MultivariateNormal(family.mean(lam), precision_matrix=matrix)


def merged(rule, family, lam, weight):
    if rule.together and family is gaussian.full:
        return transported(lam, weight)
    centre = family.mean(lam[0]) + 0.3  # any: a barycentre does not depend on it
    parts = rule.parts(family, lam, centre)
    mean = [torch.tensordot(weight.to(lam), part, 1) for part in parts]
    return rule.whole(family, *mean, centre)


def bures(one, many):
    """tr(A + B - 2 (A^½ B A^½)^½), whose last term is the sum of the roots of AB's eigenvalues."""
    trace = lambda matrix: matrix.diagonal(dim1=-2, dim2=-1).sum(-1)  # noqa: E731
    return trace(one) + trace(many) - 2 * torch.linalg.eigvals(one @ many).real.sqrt().sum(-1)


def distance(name, family, q, lam):
    """[count] of q from each of lam."""
    if name == "wasserstein":
        apart = (family.mean(q) - family.mean(lam)).square().sum(-1)
        if family is gaussian.full:
            return apart + bures(*(torch.linalg.inv(family.precision(one)) for one in (q.expand_as(lam), lam)))
        size = 4 if family is gaussian.isotropic else 1
        gap = family.precision(q).rsqrt() - family.precision(lam).rsqrt()
        return apart + size * gap.square().sum(-1)
    one, many = normal(family, q.expand_as(lam)), normal(family, lam)
    pair = (one, many) if name == "reverse_kl" else (many, one)
    return torch.distributions.kl_divergence(*pair)


@pytest.mark.parametrize("covariance", gaussian.FAMILIES)
@pytest.mark.parametrize("name", ["reverse_kl", "forward_kl", "wasserstein"])
def test_a_barycentre_has_the_least_mean_divergence(name, covariance):
    """Its gradient is 0 there, and the mean divergence is larger all around."""
    rule, family = RULES[name], gaussian.FAMILIES[covariance]
    lam, weight = gaussians(covariance)
    found = merged(rule, family, lam, weight).requires_grad_()
    least = (weight * distance(name, family, found, lam)).sum()
    (slope,) = torch.autograd.grad(least, found)
    close(slope, torch.zeros_like(slope), 1e-9)
    for seed in range(5):
        way = torch.randn(found.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        if covariance == "full":
            way[1:] = (way[1:] + way[1:].mT) / 2
        near = (found + 0.05 * way).detach()
        assert (weight * distance(name, family, near, lam)).sum() > least


def test_moments_are_those_of_the_mixture():
    lam, weight = gaussians("full")
    found = normal(gaussian.full, merged(RULES["forward_kl"], gaussian.full, lam, weight))
    each = normal(gaussian.full, lam)
    mean = (weight.unsqueeze(1) * each.mean).sum(0)
    apart = (each.mean - mean).unsqueeze(2)
    close(found.mean, mean)
    close(found.covariance_matrix, (weight.view(-1, 1, 1) * (each.covariance_matrix + apart @ apart.mT)).sum(0))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("covariance", gaussian.FAMILIES)
def test_of_one_gaussian_it_is_that_one(name, covariance):
    lam, weight = gaussians(covariance)
    close(merged(RULES[name], gaussian.FAMILIES[covariance], lam[:1].expand_as(lam), weight), lam[0])


def test_plain_means_of_means_and_spreads():
    lam, weight = gaussians("diagonal")
    mean, variance = gaussian.diagonal.mean(lam), 1 / gaussian.diagonal.precision(lam)
    average = lambda value: (weight.unsqueeze(1) * value).sum(0)  # noqa: E731
    for name, spread in (("arithmetic", average(variance)), ("log_variance", average(variance.log()).exp())):
        found = merged(RULES[name], gaussian.diagonal, lam, weight)
        close(gaussian.diagonal.mean(found), average(mean))
        close(1 / gaussian.diagonal.precision(found), spread)


@pytest.mark.parametrize("name", ["wasserstein", "log_variance"])
def test_of_covariances_that_commute_the_full_one_is_the_diagonal_one(name):
    """In any common axes: here those of a random rotation."""
    lam, weight = gaussians("diagonal")
    axes = torch.linalg.qr(torch.randn(4, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64))[0]
    turn = lambda lam: gaussian.full.natural(  # noqa: E731
        gaussian.diagonal.mean(lam) @ axes, axes.T @ torch.diag_embed(gaussian.diagonal.precision(lam)) @ axes
    )
    whole = merged(RULES[name], gaussian.full, turn(lam), weight)
    close(whole, turn(merged(RULES[name], gaussian.diagonal, lam, weight)), 1e-10)


@pytest.mark.parametrize("weights", ["examples", "plain"])
def test_the_server_takes_the_transported_posterior_of_all_clients(exchange, weights):
    """Full covariances of Gaussian clients, in cohorts of two, and with two clients away."""
    task = toy.task()
    settings = {"barycentre": "wasserstein", "covariance": "full", "delta": DELTA, "weights": weights}
    for part in (1.0, 0.6):
        federation = toy.federation(ba_bfl.Method(**settings), exact.Solver(), task, exchange, participation=part)
        found = toy.iterate(federation, 1)[-1].lam
        prior, wanted = DELTA * torch.eye(toy.D, dtype=torch.float64), []
        for some in combinations(range(toy.K), round(part * toy.K)):
            grams = [toy.gram(task, k) for k in some]
            each = [gaussian.full.natural(torch.linalg.solve(g + prior, shift), g + prior) for g, shift in grams]
            weight = task.num_examples[list(some)] if weights == "examples" else torch.ones(len(some))
            wanted.append(transported(torch.stack(each), weight))
        assert min(float((found - one).abs().max()) for one in wanted) < 1e-9


@pytest.mark.parametrize("prior", ["share", "fixed"])
def test_one_round_of_products_gives_the_pooled_posterior_of_gaussian_clients(exchange, prior):
    """With K-th roots of the prior; with whole ones it counts K times. The next round changes nothing."""
    task = toy.task()
    method = fedivon.Method(covariance="full", delta=DELTA, prior=prior)
    _, first, second = toy.iterate(toy.federation(method, exact.Solver(), task, exchange), 2)
    close(first.lam, posterior(task, delta=DELTA * (toy.K if prior == "fixed" else 1)))
    close(second.lam, first.lam)
    weights, local = {"barycentre": "conflation", "weights": "plain"}, exact.Solver()
    other = ba_bfl.Method(covariance="full", delta=DELTA, prior=prior, **weights)
    close(toy.iterate(toy.federation(other, local, task, exchange), 1)[-1].lam, first.lam)


def test_a_product_with_some_clients_is_scaled_to_all(exchange):
    """Its K-th root, at which clients start, would else lose a part of its precision in every round."""
    task, active = toy.task(), 3
    method = fedivon.Method(covariance="full", delta=DELTA)
    federation = toy.federation(method, exact.Solver(), task, exchange, participation=active / toy.K)
    for state in toy.iterate(federation, 4)[1:]:
        precision = gaussian.full.precision(state.lam)
        prior = DELTA * torch.eye(toy.D, dtype=torch.float64)
        products = [
            toy.K / active * sum(toy.gram(task, k)[0] + prior for k in some)
            for some in combinations(range(toy.K), active)
        ]
        assert min(float((precision - product).abs().max()) for product in products) < 1e-10


def test_small_variances_far_from_the_origin_survive_in_float32():
    """V + m m^T around 0 is m m^T where V is below its last bit."""
    mean = torch.tensor([[3.0, -20.0], [3.0, -20.0]])
    lam = gaussian.diagonal.natural(mean, torch.tensor([[1e8, 1e7], [1e8, 1e7]]))
    found = RULES["forward_kl"]
    parts = found.parts(gaussian.diagonal, lam, mean[0])
    merged = found.whole(gaussian.diagonal, parts[0].mean(0), parts[1].mean(0), mean[0])
    close(gaussian.diagonal.precision(merged), torch.tensor([1e8, 1e7]), 1e-4)


def test_with_the_server_as_prior_information_adds_up(exchange):
    """reverse_kl: every round adds the clients' mean information to the precision."""
    task = toy.task()
    method = ba_bfl.Method(covariance="full", delta=DELTA, prior="server", weights="plain")
    states = toy.iterate(toy.federation(method, exact.Solver(), task, exchange), 3)
    mean = sum(toy.gram(task, k)[0] for k in range(toy.K)) / toy.K
    for rounds, state in enumerate(states):
        close(gaussian.full.precision(state.lam), DELTA * torch.eye(toy.D, dtype=torch.float64) + rounds * mean)
