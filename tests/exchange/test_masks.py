"""Masks cancel to the bit; what leaves a rank is noise; a wrong key gives noise as well."""

import pytest
import torch

from fedddp.exchange import masks
from fedddp.exchange.fixed_point import Segment, all_reduce
from fedddp.exchange.group import Exchange
from fedddp.exchange.masks import Masks, Pair, meet
from fedddp.exchange.messages import Gather, Mean, Sum
from fedddp.exchange.ranges import Ranges

pytestmark = pytest.mark.skipif(bool(masks.available()), reason=f"exchange.secure {masks.available()}")
SIZE = 40_000


class Eavesdropper:
    """A transport that keeps what it is given."""

    def __init__(self, inner):
        self.inner, self.source, self.result, self.heard = inner, inner.source, inner.result, []

    def start(self, slot, words):
        self.heard.append(self.source[slot, :words].clone())
        return self.inner.start(slot, words)


def add_up(parties, wrong=False, shares=True):
    """The total of i + 1 from rank i, in each entry, and the words that this rank has sent."""
    exchange = Exchange(shares=shares)
    pairs = meet(exchange, parties)
    if wrong and exchange.rank == 1:
        pairs = [Pair(bytes(32), pair.sign) for pair in pairs]
    total = torch.empty(SIZE)
    part = torch.full((SIZE,), exchange.rank + 1.0)
    segment = Segment([part], 40, total, torch.ones(1, dtype=torch.float64))
    transport = Eavesdropper(exchange.transport(SIZE, torch.device("cpu")))
    all_reduce(transport, [segment], Masks(pairs).hide)
    return total, torch.cat(transport.heard)


@pytest.mark.parametrize("shares", [True, False], ids=["shared memory", "sockets"])
@pytest.mark.parametrize("parties", [[0, 1, 2], [2, 0, 1, 1, 0, 2, 0]], ids=["ranks", "clients"])
def test_masks_cancel_to_the_bit(worlds, parties, shares):
    for total, _ in worlds(3).run(add_up, parties, False, shares):
        assert torch.equal(total, torch.full((SIZE,), 6.0))


def test_what_a_rank_sends_is_uniform_although_all_its_numbers_are_the_same(worlds):
    for _, sent in worlds(2).run(add_up, [0, 1]):
        counts = torch.bincount(sent.view(torch.uint8).long(), minlength=256).double()
        expected = counts.sum() / 256
        chi = float(((counts - expected) ** 2 / expected).sum())
        assert 150 < chi < 390, chi  # 255 degrees of freedom: beyond 5 deviations on either side
        assert len(sent.unique()) == SIZE


def test_two_exchanges_never_use_the_same_masks(worlds):
    first, second = (worlds(2).run(add_up, [0, 1])[0][1] for _ in range(2))
    assert not (first == second).any()


def test_a_wrong_key_gives_noise_and_not_a_leak(worlds):
    for total, _ in worlds(2).run(add_up, [0, 1], True):
        assert (total - 3).abs().median() > 1000


def test_values_and_weights_are_clipped_exactly_and_counted():
    ranges = Ranges({"lam": 2.0, "lam_precision": 10.0, "all": 1.0}, weight=5.0, clients=3)
    lam = torch.tensor([[[1.0, 3.0], [9.0, 11.0]], [[-2.0, -2.5], [0.0, 10.0]]])
    kept, count = ranges.clip({"lam": Mean(lam, torch.tensor([7.0, 4.0])), "step": Sum(torch.tensor([[0.5], [-3.0]]))})
    assert kept["lam"].value.tolist() == [[[1.0, 2.0], [9.0, 10.0]], [[-2.0, -2.0], [0.0, 10.0]]]
    assert kept["lam"].weight.tolist() == [5.0, 4.0]
    assert kept["step"].value.tolist() == [[0.5], [-1.0]]
    assert count.tolist() == [2, 2]


def test_a_grid_holds_the_largest_sum_and_depends_on_nothing_else():
    ranges = Ranges({"all": 1.0}, weight=4.0, clients=3)
    assert ranges.exponents([("theta", "mean", 1), ("step", "sum", 1)]) == [4, 4, 2]  # 12, 12 and 3 are below 2^e


def test_rows_of_clients_are_refused_unless_allowed_by_name():
    message = {"modes": Gather(torch.ones(2, 3)), "theta": Sum(torch.ones(2, 3))}
    with pytest.raises(ValueError, match=r"gathers modes .* exchange.gathered=\[modes\]"):
        Ranges({"all": 1.0}, 1.0, 1).clip(message)
    kept, _ = Ranges({"all": 1.0}, 1.0, 1, gathered=["modes"]).clip(message)
    assert "modes" in kept
