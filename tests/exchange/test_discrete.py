"""The discrete Gaussian: its probabilities, its moments at the scale of a run, and its independence of the batch."""

import numpy as np
import pytest

from fedddp.exchange.discrete import LARGEST, Bits, discrete_gaussian, discrete_laplace, exponential, key_of

pytest.importorskip("cryptography", reason="random bits need cryptography: pip install 'fedddp[privacy]'")
COUNT = 200_000


def bits(name="test"):
    return Bits(key_of(name))


def chi(drawn, density, most):
    """Σ (seen - expected)²/expected over -most..most and what lies beyond, and its degrees of freedom."""
    values = np.arange(-most, most + 1)
    wide = np.arange(-60 * most, 60 * most + 1)
    share = density(values) / density(wide).sum()
    seen = np.array([(drawn == value).sum() for value in values])
    expected = np.append(share, 1 - share.sum()) * len(drawn)
    seen = np.append(seen, len(drawn) - seen.sum())
    return float(((seen - expected) ** 2 / expected).sum()), len(values)


@pytest.mark.parametrize("scale", [1, 2, 5])
def test_integers_have_the_probabilities_of_the_discrete_gaussian(scale):
    drawn = discrete_gaussian(scale, COUNT, bits())
    found, free = chi(drawn, lambda x: np.exp(-(x**2) / (2 * scale**2)), 3 * scale)
    assert found < free + 5 * np.sqrt(2 * free)


def test_the_test_tells_another_scale():
    found, free = chi(discrete_gaussian(2, COUNT, bits()), lambda x: np.exp(-(x**2) / (2 * 2.05**2)), 6)
    assert found > free + 5 * np.sqrt(2 * free)


def test_laplace_has_its_own_probabilities():
    found, free = chi(discrete_laplace(3, COUNT, bits()), lambda x: np.exp(-np.abs(x) / 3), 9)
    assert found < free + 5 * np.sqrt(2 * free)


@pytest.mark.parametrize(("numerator", "denominator"), [(0, 1), (1, 3), (1, 1), (7, 3), (5, 1)])
def test_a_coin_falls_with_exp_of_minus_a_fraction(numerator, denominator):
    share = exponential(np.full(COUNT, numerator), denominator, bits()).mean()
    wanted = np.exp(-numerator / denominator)
    assert abs(share - wanted) <= 5 * np.sqrt(wanted * (1 - wanted) / COUNT)


def test_moments_at_the_largest_scale():
    drawn = discrete_gaussian(LARGEST, COUNT, bits()) / LARGEST
    assert abs(drawn.mean()) < 5 / np.sqrt(COUNT)
    assert abs(drawn.var() - 1) < 5 * np.sqrt(2 / COUNT)
    assert abs((drawn**4).mean() - 3) < 5 * np.sqrt(96 / COUNT)


def test_uniform_numbers_below_a_bound_that_is_no_power_of_two():
    drawn = bits().below(np.full(COUNT, 7))
    seen = np.bincount(drawn, minlength=7)
    assert len(seen) == 7
    assert ((seen - COUNT / 7) ** 2 / (COUNT / 7)).sum() < 6 + 5 * np.sqrt(12)


def test_a_key_has_one_stream():
    one, two = (discrete_gaussian(9, 100, bits()) for _ in range(2))
    assert (one == two).all()
    assert (one != discrete_gaussian(9, 100, bits("other"))).any()
    with pytest.raises(ValueError, match="scale of a discrete Gaussian"):
        discrete_gaussian(LARGEST + 1, 1, bits())
