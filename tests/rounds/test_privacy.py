"""Client-level privacy: clipping to the bit, noise on the sum, the clip that follows a quantile."""

from math import exp, log, sqrt

import pytest
import torch
from scipy.stats import beta

from fedddp.local import exact
from fedddp.methods import bregman_admm, fedavg, scaffold
from fedddp.rounds import accounting
from fedddp.rounds.clipped import Grid, share
from fedddp.rounds.privacy import PrivacySettings
from fedddp.rounds.private import private
from tests import toy

pytestmark = pytest.mark.skipif(bool(accounting.available()), reason=accounting.available())


def settings(**more):
    return PrivacySettings(**({"level": "client", "noise": 1.0, "clip": {"all": 0.5}} | more))


def wrapped(method=None, expected=5, **more):
    given = settings(**more)
    return private(method or fedavg.Method(), given, "test", given.noise, expected=expected, seed=3)


def server_of(method, exchange, rounds=1):
    return toy.iterate(toy.federation(method, exact.Solver(), toy.task(), exchange), rounds)


def test_rows_are_shortened_to_the_clip_and_shorter_ones_only_rounded():
    grid = Grid.of(clip=2.0, noise=1.0, size=3)
    rows = torch.tensor([[3.0, 0.0, 4.0], [0.3, -0.2, 0.1], [0.0, 0.0, 0.0]], dtype=torch.float64)
    kept, step = grid.round(rows), 2.0**-grid.bits
    torch.testing.assert_close(kept[0], rows[0] * 0.4, rtol=0, atol=step / 2)
    torch.testing.assert_close(kept[1], rows[1], rtol=0, atol=step / 2)
    assert torch.equal(kept[2], rows[2])
    assert torch.equal(kept / step, (kept / step).round())
    assert grid.round(torch.tensor([[float("inf"), 0.0, 0.0]])).isnan().any()


@pytest.mark.parametrize("clip", [1e-6, 0.3, 1e4])
@pytest.mark.parametrize("noise", [0.3, 1.0, 70.0])
@pytest.mark.parametrize("size", [1, 178_110])
def test_the_noise_covers_the_clip_and_the_rounding(clip, noise, size):
    grid = Grid.of(clip, noise, size)
    assert 2**20 <= grid.scale <= 2**23
    moves = clip * 2.0**grid.bits + sqrt(size) / 2
    assert noise * moves <= grid.scale <= 1.05 * noise * clip * 2.0**grid.bits + 2 * noise + 1 or size > 1


def test_a_round_is_the_clipped_mean_and_integers_of_that_scale(exchange):
    """The noise of many rounds from one place: take the exact mean away, and integers of the scale are left."""
    method = wrapped()
    start, _ = server_of(method, exchange)
    plain, fed = [], toy.federation(method, exact.Solver(), toy.task(), exchange)
    grid = Grid.of(0.5, 1.0, toy.D)
    for number in range(300):
        noisy = fed.round(start._replace(rounds=torch.tensor(number)), 0)[0].theta
        plain.append((noisy - start.theta) * 5 * 2.0**grid.bits)
    steps = torch.stack(plain)
    assert (steps - steps.round()).abs().max() < 0.01  # dividing by 5 and taking the start away rounds
    apart = (steps[1:] - steps[:-1]) / (sqrt(2) * grid.scale)
    assert abs(float(apart.square().mean()) - 1) < 5 * sqrt(3 / apart.numel())


def test_with_a_wide_clip_and_little_noise_it_is_the_plain_mean(exchange):
    method = wrapped(clip={"theta": 100.0}, noise=1e-6)
    noisy = server_of(method, exchange, 3)[-1].theta
    sizes = torch.tensor([1.0] * 5, dtype=torch.float64)
    theta = toy.task().initial
    for _ in range(3):
        own = torch.stack([torch.linalg.solve(*toy.gram(toy.task(), k)) for k in range(5)])
        theta = (sizes[:, None] * own).sum(0) / 5
    torch.testing.assert_close(noisy, theta, rtol=0, atol=1e-3)


def test_the_clip_follows_the_quantile(exchange):
    method = wrapped(clip={"all": 1e-3}, quantile=0.5, noise=0.01)
    clips = [float(server.clip) for server in server_of(method, exchange, 60)]
    assert clips[1] == pytest.approx(1e-3 * exp(0.2 * 0.5), rel=0.05)
    assert clips[-1] > 0.1


def test_a_count_beside_the_sum_is_paid_for():
    changes, count = wrapped(quantile=0.5, noise=2.0)._multipliers
    assert changes**-2 + count**-2 == pytest.approx(2.0**-2)
    assert wrapped(noise=2.0)._multipliers[0] == 2.0


def test_shares_add_up_to_the_noise():
    grid = Grid.of(1.0, 1.0, 10)
    drawn = sum(grid.draw(4000, bytes([client]) * 32, share(grid.scale, 7)) for client in range(7))
    assert float(drawn.std()) * 2.0**grid.bits / grid.scale == pytest.approx(1, abs=5 / sqrt(8000))


def test_a_method_that_sends_other_than_one_change_is_refused():
    with pytest.raises(ValueError, match=r"privacy.level=client: not for method=test"):
        wrapped(scaffold.Method())
    with pytest.raises(ValueError, match=r"privacy.level=client: not for method=test"):
        wrapped(bregman_admm.Method())


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"level": "clients"}, "none or client or part or example"),
        ({"noise": 0.0}, "give privacy.epsilon=... or privacy.noise"),
        ({"level": "example"}, "privacy.clip.gradient"),
        ({"clip": {"theta": 0.0}}, "privacy.clip.theta=0.0: must be above 0"),
        ({"delta": 1.0}, "privacy.delta=1.0: must be in"),
    ],
)
def test_settings_that_cannot_be_name_the_remedy(wrong, said):
    with pytest.raises(ValueError, match=said):
        settings(**wrong)


def test_a_canary_is_told_apart_no_better_than_epsilon_allows():
    """One release with and without a client that pushes along one axis; the best test is a threshold there.

    For every threshold, log(P(true)/P(false)) at δ is a lower bound of ε (Clopper-Pearson): none may be above what is
    accounted for, and the best must come near it, or the test could not tell too little noise.
    """
    runs, noise, delta = 20_000, 1.0, 1e-2
    grid = Grid.of(1.0, noise, 1)
    canary = float(grid.round(torch.tensor([[5.0]]))[0, 0])
    drawn = [grid.draw(runs, bytes([which]) * 32, grid.scale) for which in (1, 2)]
    claimed = accounting.of_clients("fixed", 1.0, 10, delta, "pld").epsilon(noise, 1)
    found = max(lower_bound(drawn[0] + canary, drawn[1], at, delta) for at in torch.linspace(-1, 3, 41).tolist())
    assert 0.7 * claimed < found <= claimed
    less = max(lower_bound(drawn[0] + 2 * canary, drawn[1], at, delta) for at in torch.linspace(-1, 5, 61).tolist())
    assert less > claimed  # half of the noise is caught


def lower_bound(there, away, at, delta):
    """ε that a threshold proves with 99.9 % certainty."""
    true, false = int((there > at).sum()), int((away > at).sum())
    low = beta.ppf(5e-4, true, len(there) - true + 1) if true else 0.0
    high = beta.ppf(1 - 5e-4, false + 1, len(away) - false) if false < len(away) else 1.0
    return log((low - delta) / high) if low > delta else 0.0
