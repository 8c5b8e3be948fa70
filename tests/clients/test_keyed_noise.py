"""Noise that only its key tells: standard normal to its tails, each client's and each draw's its own."""

import math

import pytest
import torch
from scipy.stats import kstest

from fedddp.clients.keyed_noise import Keyed, normal

pytest.importorskip("cryptography", reason="a cipher makes it: pip install 'fedddp[privacy]'")
SIZE = 1 << 19


def keyed(*names):
    return Keyed([bytes([name]) * 32 for name in names])


def drawn(noise, size=SIZE):
    out = torch.zeros(len(noise.keys), size)
    noise.add(out, [1.0] * len(noise.keys))
    return out


def test_it_is_standard_normal_and_uncorrelated():
    noise = keyed(1, 2)
    z = torch.cat([drawn(noise), drawn(noise)]).double()  # two clients, two draws
    bound = 5 / math.sqrt(SIZE)
    assert z.mean(1).abs().max() < bound
    assert (z.square().mean(1) - 1).abs().max() < bound * math.sqrt(2)
    assert (z.pow(4).mean(1) - 3).abs().max() < bound * math.sqrt(96)
    for values in (z, z.square() - 1):  # of a pair from one radius, the squares could be
        pairs = torch.stack([*values, values[0].roll(1), values[0].roll(SIZE // 2), values[0].roll(1 << 13)])
        apart = pairs @ pairs.T / SIZE
        assert apart.fill_diagonal_(0).abs().max() < 3 * bound
    assert all(kstest(row.numpy(), "norm").pvalue > 1e-4 for row in z)


@pytest.mark.parametrize("beyond", [2.0, 3.0, 4.0, 4.5])
def test_its_tails_are_as_heavy_as_they_must_be(beyond):
    z, share = drawn(keyed(*range(8))), 2 * torch.special.ndtr(torch.tensor(-beyond, dtype=torch.float64)).item()
    expected = share * z.numel()
    assert abs(int((z.abs() > beyond).sum()) - expected) < 5 * math.sqrt(expected)


def test_the_smallest_and_largest_words_give_the_ends():
    """u is 2^-33 for the word 0, so the radius is √(66 log 2); 1 for the largest, where it is 0."""
    words = torch.tensor([0, -1, 0, 0], dtype=torch.int32)
    x, nothing, y, nowhere = normal(words, 4).tolist()
    assert math.hypot(x, y) == pytest.approx(math.sqrt(66 * math.log(2)), rel=1e-6)
    assert nothing == nowhere == 0


def test_it_is_box_and_mullers_formula():
    """Against double precision, at all sizes of the radius and all angles."""
    generator = torch.Generator().manual_seed(1)
    words = torch.randint(-(2**31), 2**31, (2, 100_000), generator=generator)
    words[0] >>= torch.randint(0, 31, (100_000,), generator=generator)
    x, y = normal(words.flatten().int(), 200_000).double().view(2, -1)
    u = ((words[0] & 0xFFFFFFFF).double() + 0.5) * 2.0**-32
    assert (x.square() + y.square() + 2 * u.log()).abs().max() < 2e-5
    assert (x.hypot(y) - (-2 * u.log()).sqrt()).abs().max() < 3e-4  # near u = 1, where float32 has no more
    found = torch.atan2(y, x).add(math.pi / 4).remainder(math.pi / 2)
    angle = ((words[1] >> 2).double() * 2.0**-29 + 1) * math.pi / 4
    swapped = ((words[1] & 1) + (words[1] >> 1 & 1)) % 2 == 1  # mirrored within its quarter
    wanted = torch.where(swapped, math.pi / 2 - angle, angle)
    apart = (found - wanted).abs()
    far = x.hypot(y) > 0.1
    assert torch.minimum(apart, math.pi / 2 - apart)[far].max() < 1e-6


def test_a_client_has_the_same_numbers_beside_any_others_and_never_twice():
    beside, alone = keyed(3, 4, 5), keyed(5)
    first = drawn(alone, 1001)
    assert torch.equal(drawn(beside, 1001)[2], first[0])
    assert not (drawn(alone, 1001) == first).any()


def test_it_is_added_to_other_types_and_only_to_the_rows_at_work():
    out = torch.ones(2, 50, dtype=torch.float64)
    keyed(1, 2, 3).add(out[:1], [2.0, 5.0, 5.0])
    torch.testing.assert_close(out[0], 1 + 2 * drawn(keyed(1), 50)[0].double())
    assert (out[1] == 1).all()
