"""ε against published numbers and closed forms."""

from math import exp, log, sqrt

import pytest
from scipy.stats import norm

from fedddp.rounds import accounting
from fedddp.rounds.accounting import Accountant, Release, of_clients, of_examples

pytestmark = pytest.mark.skipif(bool(accounting.available()), reason=accounting.available())
DELTA = 1e-5


@pytest.mark.parametrize(("noise", "epochs", "published"), [(1.3, 15, 1.19), (1.1, 60, 3.01), (0.7, 45, 7.10)])
def test_the_published_table_of_dp_sgd_on_mnist(noise, epochs, published):
    """60,000 examples in batches of 256 (TensorFlow Privacy's tutorial), by the conversion of its time."""
    import dp_accounting as dp
    from dp_accounting.rdp import RdpAccountant

    orders = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))
    made = RdpAccountant(orders)
    (release,) = of_examples("poisson", [60_000], epochs, 256, 1, DELTA, "rdp").releases
    made.compose(release.event(noise), release.times)
    earlier = min(rdp + log(1 / DELTA) / (order - 1) for order, rdp in zip(made._orders, made._rdp, strict=True))
    assert earlier == pytest.approx(published, abs=0.011)
    assert isinstance(release.event(noise), dp.PoissonSampledDpEvent)
    rdp, pld = (Accountant((release,), DELTA, kind).epsilon(noise, 1) for kind in ("rdp", "pld"))
    assert 0.7 * earlier < pld < rdp < earlier


def delta_of(epsilon, noise):
    """Of one Gaussian release (Balle & Wang 2018, Theorem 8)."""
    half = 1 / (2 * noise)
    return norm.cdf(half - epsilon * noise) - exp(epsilon) * norm.cdf(-half - epsilon * noise)


@pytest.mark.parametrize("rounds", [1, 16])
def test_gaussian_releases_by_their_closed_form(rounds):
    """n releases are one with 1/√n of the noise."""
    found = of_clients("fixed", 1.0, 10, DELTA, "pld").epsilon(4.0, rounds)
    assert delta_of(found, 4.0 / sqrt(rounds)) == pytest.approx(DELTA, rel=0.02)
    assert of_clients("fixed", 1.0, 10, DELTA, "rdp").epsilon(4.0, rounds) > found


def test_replacing_moves_a_sum_twice_as_far():
    replaced = Release(drawn=5, total=10)
    assert replaced.event(3.0).event.noise_multiplier == 1.5
    assert replaced.neighbours == "one replaced by another"
    assert Release().neighbours != Release(share=0.5).neighbours


def test_epochs_count_once_each_and_poisson_steps_all():
    assert of_examples("fixed", [600, 20], 5, 32, 2, DELTA, "rdp").releases == (Release(times=10),)
    found = of_examples("poisson", [600, 20, 320], 5, 32, 1, DELTA, "rdp").releases
    assert set(found) == {Release(95, 32 / 600), Release(5, 1.0), Release(50, 0.1)}


def test_a_client_that_another_outdoes_is_not_computed():
    assert accounting._worst({(0.1, 10), (0.1, 20), (0.2, 20)}) == [(0.2, 20)]


@pytest.mark.parametrize("kind", accounting.ACCOUNTANTS)
def test_the_noise_for_a_budget_is_the_least(kind):
    accountant = of_clients("poisson", 0.2, 200, DELTA, kind)
    noise = accountant.noise(2.0, 30)
    assert accountant.epsilon(noise, 30) <= 2.0 < accountant.epsilon(0.99 * noise, 30)


def test_a_fixed_number_of_clients_is_not_taken_for_poisson():
    with pytest.raises(ValueError, match=r"privacy.accountant=pld: cannot account for a fixed number"):
        of_clients("fixed", 0.5, 100, DELTA, "pld")
    assert of_clients("fixed", 0.2, 200, DELTA, "rdp").epsilon(2.0, 30) > of_clients(
        "poisson", 0.2, 200, DELTA, "rdp"
    ).epsilon(2.0, 30)


def test_draws_of_nobody_are_paid_for_in_delta():
    few = of_clients("poisson", 0.5, 10, DELTA, "rdp")
    with pytest.raises(ValueError, match="no client at all is drawn"):
        few.epsilon(1.0, 3)
