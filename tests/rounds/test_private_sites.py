"""Noise on sites: what clients remember and what noise there was make the server's total; precisions stay positive."""

from dataclasses import replace
from math import sqrt

import pytest
import torch

from fedddp.core.gaussian import FAMILIES
from fedddp.local import exact, ivon, sgd
from fedddp.methods import bayes_admm, fedavg, fedlap_cov, pvi
from fedddp.rounds import accounting
from fedddp.rounds.averaging import Averaged, shares
from fedddp.rounds.privacy import PrivacySettings
from fedddp.rounds.private import private
from tests import toy

pytestmark = pytest.mark.skipif(bool(accounting.available()), reason=accounting.available())
ROUNDS = 4


def wrapped(method, clip=0.5, noise=1.0, level="client", expected=5, **more):
    clips = clip if isinstance(clip, dict) else {"all": clip}
    settings = PrivacySettings(level=level, noise=noise, clip=clips)
    return private(method, settings, "test", noise, expected=expected, seed=3, **more)


def ran(method, exchange, rounds=ROUNDS, local=None, participation=1.0, task=None):
    fed = toy.federation(method, local or exact.Solver(), task or toy.task(), exchange, participation)
    return fed, toy.iterate(fed, rounds)


def drawn(method, states):
    """The noise of every round, on the sum of changes."""
    total = 0.0
    for state in states[:-1]:
        lam = state.method.lam
        grids = method._grids(state, lam.numel())
        total = total + method._draw(grids, method._scales(grids), int(state.rounds), method._field).view(lam.shape)
    return total


@pytest.mark.parametrize("participation", [1.0, 0.6])
def test_the_servers_sites_are_the_prior_the_stored_sites_and_the_noise(exchange, participation):
    method = wrapped(pvi.Method(), expected=5 * participation)
    fed, states = ran(method, exchange, participation=participation)
    stored, prior = fed.store.memory.dual.sum(0), states[0].method.sites
    noise, sites = drawn(method, states), states[-1].method.sites
    assert noise.abs().max() > 0.1
    torch.testing.assert_close(prior + stored + noise, sites, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [bayes_admm.Method, fedlap_cov.Method])
def test_so_they_are_in_other_methods_with_sites(exchange, kind):
    own = kind()
    method, step = wrapped(own), own._step if kind is bayes_admm.Method else 1.0
    fed, states = ran(method, exchange)
    found = states[0].method.sites + fed.store.memory.dual.sum(0) + step * drawn(method, states)
    torch.testing.assert_close(found, states[-1].method.sites, rtol=0, atol=1e-12)


def test_shares_of_the_noise_are_not_remembered(exchange):
    """With them in the sites, later changes of all clients would take the noise out of the total again."""
    clean = ran(wrapped(pvi.Method()), exchange, 1)[0].store.memory.dual
    fed, states = ran(wrapped(pvi.Method(), shared=True), exchange, 1)
    assert torch.equal(fed.store.memory.dual, clean)
    rest = states[-1].method.sites - states[0].method.sites - clean.sum(0)
    assert 0.05 < rest.std() < 5


@pytest.mark.parametrize("own", [pvi.Method(), bayes_admm.Method(rho=1.0, damping=0.1)], ids=["pvi", "bayes_admm"])
def test_with_a_wide_clip_and_little_noise_it_is_the_plain_method(exchange, own):
    _, plain = ran(own, exchange)
    _, noisy = ran(wrapped(own, clip=1e4, noise=1e-9), exchange)
    torch.testing.assert_close(noisy[-1].method.lam, plain[-1].lam, rtol=0, atol=1e-3)


def test_each_row_of_natural_parameters_has_a_clip_of_its_own(exchange):
    method = wrapped(pvi.Method(damping=1.0), clip={"dual_change": 0.4, "dual_change_precision": 0.03})
    fed, states = ran(method, exchange, 1)
    norms = fed.store.memory.dual.norm(dim=2)
    assert states[0].clip.tolist() == [0.4, 0.03]
    torch.testing.assert_close(norms[:, 0].amax(), torch.tensor(0.4, dtype=torch.float64), rtol=0, atol=1e-6)
    torch.testing.assert_close(norms[:, 1].amax(), torch.tensor(0.03, dtype=torch.float64), rtol=0, atol=1e-6)


def test_two_fields_are_one_release_as_private_as_the_noise_says(exchange):
    method = wrapped(pvi.Method(), clip=0.5, noise=2.0)
    state = method.init_server(toy.task())
    grids = method._grids(state, 2 * toy.D)
    moved = sum(((g.clip * 2.0**g.bits + sqrt(g.size) / 2) / g.scale) ** 2 for g in grids)
    assert 0.99 / 2.0 < sqrt(moved) <= 1 / 2.0
    assert (
        method._draw(grids, method._scales(grids), 0, "x").unique().numel() == 2 * toy.D
    )  # no row's noise is another's


def test_the_clips_of_two_fields_follow_their_quantiles(exchange):
    settings = PrivacySettings(level="client", noise=0.01, clip={"all": 1e-3}, quantile=0.5)
    method = private(pvi.Method(damping=1.0), settings, "test", 0.01, expected=5, seed=3)
    _, states = ran(method, exchange, 40)
    first, second = (states[at].clip for at in (1, -1))
    assert ((first > 1e-3) & (second > 5 * first)).all()
    assert second[0] != second[1]


@pytest.mark.parametrize("kind", [pvi.Method, bayes_admm.Method, fedlap_cov.Method])
@pytest.mark.parametrize("covariance", ["diagonal", "full", "isotropic"])
def test_precisions_stay_at_least_the_priors_whatever_the_noise(exchange, kind, covariance):
    own = kind(covariance=covariance, delta=0.7)
    _, states = ran(wrapped(own, clip=1.0, noise=50.0), exchange, 5)
    raw = own.family.precision(states[-1].method.sites)
    kept = own.family.precision(states[-1].method.lam)
    low = torch.linalg.eigvalsh((raw + raw.mT) / 2) if covariance == "full" else raw
    assert low.amin() < 0  # or the noise was too little for this test
    assert (torch.linalg.eigvalsh(kept) if covariance == "full" else kept).amin() >= 0.7 - 1e-9


@pytest.mark.parametrize("name", FAMILIES)
def test_a_floor_leaves_what_is_above_it(name):
    family, mean = FAMILIES[name], torch.arange(3.0, dtype=torch.float64)
    precision = (
        torch.diag(torch.tensor([2.0, 3.0, 5.0]).double()) if name == "full" else torch.tensor([2.0, 3, 5]).double()
    )
    lam = family.natural(mean, precision.mean() if name == "isotropic" else precision)
    torch.testing.assert_close(family.floored(lam, 1.0), lam)
    assert family.improper(family.floored(-lam, 1.0)) == 0
    torch.testing.assert_close(family.shift(family.floored(-lam, 1.0)), -family.shift(lam))


def test_parts_are_disjoint_and_a_small_client_is_named():
    task = toy.task()
    parts = task.shards.divided(3, "federation.parts")
    for client in range(toy.K):
        own = torch.cat([part.of_client(client) for part in parts])
        assert torch.equal(own.sort().values, task.shards.of_client(client).sort().values)
        sizes = [len(part.of_client(client)) for part in parts]
        assert max(sizes) - min(sizes) <= 1
    many = task.shards.virtual(3)
    assert many.num_clients == 3 * toy.K
    assert [torch.equal(many.of_client(5), part.of_client(1)) for part in parts] == [False, False, True]
    with pytest.raises(ValueError, match=r"federation.parts=10: client 0 has 9 examples only"):
        task.shards.divided(10, "federation.parts")


def in_parts(method, exchange, clip, noise):
    made = wrapped(method, clip=clip, noise=noise, level="part", parts=3)
    local = ivon.Solver(lr=0.02, epochs=4, batch_size=4, keep=False, hess_init=1.0)
    return ran(made, exchange, 3, local)


@pytest.mark.parametrize("kind", [pvi.Method, bayes_admm.Method])
def test_averaged_parts_remember_the_noise_that_their_client_added(exchange, kind):
    """The sites are what has been told, noise and all, so they make the server's total by themselves."""
    fed, states = in_parts(kind(), exchange, 0.5, 1.0)
    total = states[0].method.sites + fed.store.memory.dual.sum(0)
    assert fed.store.memory.dual.norm(dim=2).amin() > 0
    torch.testing.assert_close(total, states[-1].method.sites, rtol=0, atol=1e-12)


def test_averaged_parts_are_the_mean_of_clipped_fits(exchange):
    """By hand: the fits of the parts from the same cavity, each one's change clipped, their mean."""
    method, task = pvi.Method(damping=1.0), toy.task()
    fed, states = in_parts(method, exchange, {"dual_change": 0.3, "dual_change_precision": 0.2}, 1e-9)
    cohort = fed.cohort((0,), 0, task, fed.oracle)
    clients = method.init_clients(1, task, fed.local)
    changes = [
        method.client_step(states[0].method, clients, part, fed.local)[1]["dual_change"].value[0]
        for part in shares(cohort, 3)
    ]
    clipped = [
        torch.stack([row * min(1.0, bound / float(row.norm())) for row, bound in zip(change, (0.3, 0.2), strict=True)])
        for change in changes
    ]
    again = toy.federation(fed.method, fed.local, task, exchange)
    again.round(again.method.init_server(task), 0)
    row = int((again.store.ids == 0).nonzero())
    torch.testing.assert_close(again.store.memory.dual[row], torch.stack(clipped).mean(0), rtol=0, atol=1e-5)
    assert not torch.equal(changes[0], changes[1])


def test_a_share_stands_for_all_of_its_clients_examples(exchange):
    fed, _ = ran(pvi.Method(), exchange, 0)
    cohort = fed.cohort((3, 1), 0, fed.task, fed.oracle)
    parts = shares(cohort, 4)
    for part in parts:
        assert torch.equal(part.num_examples, cohort.num_examples)
        assert part.steps(1, 1).tolist() == [len(part.shards.of_client(client)) for client in (3, 1)]
        with pytest.raises(ValueError, match=r"federation.parts: needs a method and a solver"):
            part.full_grad(torch.zeros(2, toy.D, dtype=torch.float64))
    assert parts[0].keys("noise") == cohort.keys("noise") != parts[1].keys("noise")
    assert shares(cohort, 1) == [cohort]


def test_an_example_moves_its_parts_change_by_twice_the_clip():
    half = accounting.of_clients("fixed", 1.0, 10, 1e-5, "rdp").epsilon(1.0, 7)
    assert accounting.of_parts(1e-5, "rdp").epsilon(2.0, 7) == half
    assert "one of its examples" in accounting.of_parts(1e-5, "pld").releases[0].neighbours


def test_sites_of_virtual_clients_have_the_same_posterior(exchange):
    """Conjugate: undamped pvi has the exact posterior after a round, however the examples are divided."""
    task = toy.task()
    many = replace(task, shards=task.shards.virtual(3))
    method = pvi.Method(damping=1.0, covariance="full")
    plain, divided = (ran(method, exchange, 1, task=one)[1][-1].lam for one in (task, many))
    torch.testing.assert_close(divided, plain, rtol=0, atol=1e-9)


def test_without_noise_a_clients_work_is_the_mean_over_its_parts(exchange):
    method, task, local = fedavg.Method(), toy.task(), sgd.Solver(lr=0.05, epochs=2, batch_size=5)
    fed, states = ran(Averaged(method, 3), exchange, 1, local)
    cohort = fed.cohort(tuple(range(toy.K)), 0, task, fed.oracle)
    cohort = replace(cohort, ids=tuple(sorted(cohort.ids, key=lambda k: -toy.SIZES[k])))
    start = method.init_server(task)
    own = [
        method.client_step(start, method.init_clients(toy.K, task, local), part, local)[1]["theta"].value
        for part in shares(cohort, 3)
    ]
    weight = torch.tensor([toy.SIZES[k] for k in cohort.ids], dtype=torch.float64)
    expected = (weight[:, None] * torch.stack(own).mean(0)).sum(0) / weight.sum()
    torch.testing.assert_close(states[-1].theta, expected, rtol=0, atol=1e-12)
    assert not torch.allclose(own[0], own[1])
