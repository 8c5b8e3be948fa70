"""Sums are exact in any order; gathers give every row; bad rows add nothing."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedddp.exchange import Exchange
from fedddp.reduce import Gather, Ledger, Mean, Sum


def totals(messages, order, slots=8):
    """What one rank makes of cohort messages in a given order."""
    ledger = Ledger(slots)
    for i in order:
        message, slot, good = messages[i]
        ledger.add(message, slot, good)
    scales = ledger.exponents()
    flat = ledger.encode(scales, len(messages), torch.device("cpu"))
    return ledger.decode(flat, scales, len(messages))


def cohort(seed, rows=2, slot=0):
    g = torch.Generator().manual_seed(seed)
    value = torch.randn(rows, 33, generator=g) * 10 ** torch.randint(-6, 6, (rows, 33), generator=g)
    lam = torch.stack([value * 1e8, value.abs() * 1e-6], dim=1)
    message = {
        "lam": Mean(lam, weight=torch.rand(rows, generator=g) + 0.1),
        "sum": Sum(value),
        "row": Gather(value.double()),
        "id": Gather(torch.arange(slot, slot + rows, dtype=torch.int32)),
    }
    return message, torch.arange(slot, slot + rows), None


@given(st.permutations(range(4)))
@settings(max_examples=24, deadline=None)
def test_the_order_of_cohorts_does_not_change_a_bit(order):
    messages = [cohort(i, slot=2 * i) for i in range(4)]
    reference, other = totals(messages, range(4)), totals(messages, order)
    for name in reference:
        assert torch.equal(reference[name], other[name])


def test_totals_are_right_to_float_precision():
    messages = [cohort(i, slot=2 * i) for i in range(4)]
    got = totals(messages, range(4))
    value = torch.cat([m["sum"].value for m, _, _ in messages])
    torch.testing.assert_close(got["sum"], value.double().sum(0).float(), rtol=1e-6, atol=1e-6)
    lam = torch.cat([m["lam"].value for m, _, _ in messages]).double()
    weight = torch.cat([m["lam"].weight for m, _, _ in messages]).double()
    mean = (lam * weight.view(-1, 1, 1)).sum(0) / weight.sum()
    torch.testing.assert_close(got["lam"].double(), mean, rtol=1e-5, atol=1e-10)
    assert torch.equal(got["row"], value.double())
    assert got["id"].tolist() == list(range(8))
    assert got["id"].dtype == torch.int32


def test_small_fields_keep_their_precision_beside_large_ones():
    big, small = torch.full((1, 5), 1e30), torch.tensor([[1e-12, -3e-13, 5e-20, 0.0, 1e-12]])
    got = totals([({"big": Sum(big), "small": Sum(small)}, torch.tensor([0]), None)], [0])
    assert torch.equal(got["big"], big[0])
    torch.testing.assert_close(got["small"], small[0], rtol=1e-7, atol=0)


def test_a_client_left_out_adds_nothing_even_if_it_is_nan():
    message, slot, _ = cohort(1)
    for entry in message.values():
        if entry.value.is_floating_point():
            entry.value[1] = float("nan")
    got = totals([(message, slot, torch.tensor([True, False]))], [0])
    torch.testing.assert_close(got["sum"], message["sum"].value[0])
    torch.testing.assert_close(got["lam"], message["lam"].value[0], rtol=1e-6, atol=0)
    assert torch.equal(got["row"][0], message["row"].value[0])
    assert not got["row"][1:].any()


def test_a_rank_without_clients_learns_the_message_from_a_peer(worlds):
    for total in worlds(3).run(share_with_idle_ranks):
        assert total == [1.0, 2.0, 3.0]


def share_with_idle_ranks():
    exchange, ledger = Exchange(), Ledger(slots=1)
    if exchange.rank == 1:
        ledger.add({"x": Sum(torch.tensor([[1.0, 2.0, 3.0]]))}, torch.tensor([0]))
    scales = exchange.agree(ledger.exponents())
    description = exchange.tell(ledger.describe(), source=1)
    if not ledger.fields:
        ledger.learn(description)
    flat = exchange.add(ledger.encode(scales, 1, torch.device("cpu")))
    return ledger.decode(flat, scales, 1)["x"].tolist()


def test_extreme_values_neither_overflow_nor_vanish():
    tiny = torch.tensor([[2.0**-149, -(2.0**-140)]])
    huge = torch.tensor([[3e38, -3e38]])
    for value in (tiny, huge, torch.zeros(1, 2)):
        assert torch.equal(totals([({"x": Sum(value)}, torch.tensor([0]), None)], [0])["x"], value[0])
