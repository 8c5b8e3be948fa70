"""Sums are exact in any order; gathers give every row; bad rows add nothing."""

import math
import os
import resource
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedddp.core import kernels
from fedddp.core.rng import stream
from fedddp.exchange import group as exchanging
from fedddp.exchange.fixed_point import Segment
from fedddp.exchange.group import Exchange, RankLost
from fedddp.exchange.messages import Gather, Mean, Sum
from fedddp.exchange.reduce import Reduction
from fedddp.jobs.pool import warm

CPU = torch.device("cpu")
ONE = torch.ones(1, dtype=torch.float64)


def totals(exchange, messages, order, slots=8):
    """What one rank makes of cohort messages in a given order."""
    reduction = Reduction(slots)
    for i in order:
        message, slot, good = messages[i]
        reduction.add(message, slot, good)
    scales = reduction.exponents()
    return reduction.total(exchange, scales, len(messages), CPU)


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
def test_the_order_of_cohorts_does_not_change_a_bit(exchange, order):
    messages = [cohort(i, slot=2 * i) for i in range(4)]
    reference, other = totals(exchange, messages, range(4)), totals(exchange, messages, order)
    for name in reference:
        assert torch.equal(reference[name], other[name])


def test_totals_are_right_to_float_precision(exchange):
    messages = [cohort(i, slot=2 * i) for i in range(4)]
    got = totals(exchange, messages, range(4))
    value = torch.cat([m["sum"].value for m, _, _ in messages])
    torch.testing.assert_close(got["sum"], value.double().sum(0).float(), rtol=1e-6, atol=1e-6)
    lam = torch.cat([m["lam"].value for m, _, _ in messages]).double()
    weight = torch.cat([m["lam"].weight for m, _, _ in messages]).double()
    mean = (lam * weight.view(-1, 1, 1)).sum(0) / weight.sum()
    torch.testing.assert_close(got["lam"].double(), mean, rtol=1e-5, atol=1e-10)
    assert torch.equal(got["row"], value.double())
    assert got["id"].tolist() == list(range(8))
    assert got["id"].dtype == torch.int32


def test_small_fields_keep_their_precision_beside_large_ones(exchange):
    big, small = torch.full((1, 5), 1e30), torch.tensor([[1e-12, -3e-13, 5e-20, 0.0, 1e-12]])
    got = totals(exchange, [({"big": Sum(big), "small": Sum(small)}, torch.tensor([0]), None)], [0])
    assert torch.equal(got["big"], big[0])
    torch.testing.assert_close(got["small"], small[0], rtol=1e-7, atol=0)


def test_a_client_left_out_adds_nothing_even_if_it_is_nan(exchange):
    message, slot, _ = cohort(1)
    for entry in message.values():
        if entry.value.is_floating_point():
            entry.value[1] = float("nan")
    got = totals(exchange, [(message, slot, torch.tensor([True, False]))], [0])
    torch.testing.assert_close(got["sum"], message["sum"].value[0])
    torch.testing.assert_close(got["lam"], message["lam"].value[0], rtol=1e-6, atol=0)
    assert torch.equal(got["row"][0], message["row"].value[0])
    assert not got["row"][1:].any()


def test_a_rank_without_clients_learns_the_message_from_a_peer(worlds):
    for total in worlds(3).run(share_with_idle_ranks):
        assert total == [1.0, 2.0, 3.0]


def share_with_idle_ranks():
    exchange, reduction = Exchange(), Reduction(slots=1)
    if exchange.rank == 1:
        reduction.add({"x": Sum(torch.tensor([[1.0, 2.0, 3.0]]))}, torch.tensor([0]))
    scales = exchange.agree(reduction.exponents())
    description = exchange.tell(reduction.describe(), source=1)
    if not reduction.fields:
        reduction.learn(description)
    return reduction.total(exchange, scales, 1, CPU)["x"].tolist()


def test_extreme_values_neither_overflow_nor_vanish(exchange):
    tiny = torch.tensor([[2.0**-149, -(2.0**-140)]])
    huge = torch.tensor([[3e38, -3e38]])
    for value in (tiny, huge, torch.zeros(1, 2)):
        assert torch.equal(totals(exchange, [({"x": Sum(value)}, torch.tensor([0]), None)], [0])["x"], value[0])


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_totals_are_the_integers_that_the_grid_says_to_the_last_bit(exchange, data):
    """Σ round(x · 2^bits), divided by its weight and rounded to the field's own format, in Python's own numbers."""
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    scale = data.draw(st.integers(-140, 120))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    spread = 2.0 ** torch.randint(-45, 1, (5, 3, 40), generator=generator, dtype=torch.float64)
    value = (torch.randn(5, 3, 40, generator=generator, dtype=torch.float64) * spread * 2.0**scale).to(dtype)
    weight = torch.rand(5, 3, generator=generator).to(dtype)
    messages = [
        ({"sum": Sum(v), "mean": Mean(v, weight=w)}, torch.arange(3), None) for v, w in zip(value, weight, strict=True)
    ]
    got = totals(exchange, messages, range(5))
    by_cohort = [_folded(m) for m, _, _ in messages]
    top, bottom = _grid_sum([c[1] for c in by_cohort]), _grid_sum([c[2] for c in by_cohort])
    assert torch.equal(got["sum"], torch.tensor(_grid_sum([c[0] for c in by_cohort]), dtype=torch.float64).to(dtype))
    assert torch.equal(got["mean"], torch.tensor([t / bottom[0] for t in top], dtype=torch.float64).to(dtype))


def _folded(message):
    reduction = Reduction(0)
    reduction.add(message, torch.arange(3))
    return [part.double().tolist() for part in reduction.sums[0]]


def _grid_sum(cohorts):
    largest = max(abs(x) for part in cohorts for x in part)
    bits = 62 - math.frexp(largest)[1] - math.ceil(math.log2(len(cohorts)))
    whole = [sum(round(Fraction(x) * Fraction(2) ** bits) for x in column) for column in zip(*cohorts, strict=True)]
    return [float(n) * 2.0**-bits for n in whole]


@pytest.mark.parametrize("ranks", [2, 3])
def test_sums_are_the_same_through_sockets_and_through_shared_memory(worlds, ranks):
    """Fields begin and end inside pieces, and of three ranks the first has nothing to add."""
    alone = worlds(1).run(large_sum)[0]
    for way in ("sockets", "socket pieces", "shared", "shared pieces", "refused"):
        for got, took in worlds(ranks).run(large_sum, way):
            assert took == ("Shared" if way.startswith("shared") else "Sockets")
            assert all(torch.equal(got[name], alone[0][name]) for name in got)


def large_sum(way="sockets"):
    """Totals of four cohorts, and the transport that they took; "refused": a rank may not have so much memory."""
    exchange, reduction = Exchange(shares=way in ("shared", "refused", "shared pieces")), Reduction(slots=4)
    for number in range(4):
        message, slot, _ = cohort(number, rows=1, slot=number)
        long = {"long": Mean(torch.randn(1, 40_000, generator=stream("long", number)), weight=2.0)}
        if exchange.rank == (1 + number % 2) % exchange.world_size:
            reduction.add(message | long, slot)
    scales = exchange.agree(reduction.exponents())
    description = exchange.tell(reduction.describe(), source=exchange.world_size - 1)
    if not reduction.fields:
        reduction.learn(description)
    piece, limit = exchanging.PIECE, resource.getrlimit(resource.RLIMIT_FSIZE)
    if way.endswith("pieces"):
        exchanging.PIECE = 1000
    if way == "refused" and exchange.rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limit[1]))
    try:
        total = reduction.total(exchange, scales, 4, CPU)
    finally:
        exchanging.PIECE = piece
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    return total, type(exchange.transport(reduction.words, CPU)).__name__


@pytest.mark.skipif(kernels.library() is None, reason="no C compiler on this machine")
def test_grids_have_the_same_bits_with_and_without_a_compiler(monkeypatch):
    halves = torch.arange(-20, 20, dtype=torch.float32) / 2  # ties go to the even number
    edges = torch.tensor([2**62, -(2**62), 2**63 - 1, -(2**63), 2**53 + 1, -(2**53) - 1, 2**32, 2**31, -1, 0])
    drawn = torch.randint(-(2**62), 2**62, (5000,), generator=stream("words"))
    words = torch.cat([edges, drawn, drawn >> (drawn % 60)])
    found = []
    for by_tensors in (False, True):
        monkeypatch.setattr(kernels, "suit", lambda _, off=by_tensors: not off)
        flat, totals = torch.zeros(40, dtype=torch.int64), [torch.zeros(len(words)) for _ in range(2)]
        Segment([halves, halves * 3, halves * 2.0**55], 0, halves, ONE).encode(flat, 0, 0, 40)
        Segment([], 0, totals[0], ONE).decode(words, 0, 0, len(words))
        Segment([], 41, totals[1], ONE * 3.7).decode(words, 0, 0, len(words))
        found.append([flat, *totals])
    assert torch.equal(found[0][0], (halves.round() + (halves * 3).round()).long() + (halves * 2.0**55).long())
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("fate", ["dies", "is stuck"])
@pytest.mark.parametrize("call", ["start", "agree"])
def test_a_rank_that_others_wait_for_in_shared_memory_is_missed(fate, call):
    context, store = warm(), torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    answers, told = context.Queue(), context.Event()
    given = (store.port, fate, call, answers, told)
    ranks = [context.Process(target=leave_or_wait, args=(rank, *given), daemon=True) for rank in range(2)]
    for rank in ranks:
        rank.start()
    why = "rank 1 has ended" if fate == "dies" else "rank 1 has not answered for 0.2 s (federation.timeout)"
    answer = answers.get(timeout=120)
    assert answer.startswith("Shared: ")
    assert why in answer
    told.set()
    for rank in ranks:
        rank.join(timeout=30)


def leave_or_wait(rank, port, fate, call, answers, told):
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=False)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    exchange = Exchange(timeout=600 if fate == "dies" else 0.2)
    transport = exchange.transport(1 << 16, CPU)
    if rank == 1:
        if fate == "is stuck":
            told.wait(120)
        os._exit(1)
    try:
        transport.start(0, 100)() if call == "start" else exchange.agree([1, 2])
    except RankLost as error:
        answers.put(f"{type(transport).__name__}: {error}")


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_ranks_agree_the_same_through_sockets_and_through_shared_memory(worlds, ranks):
    for got in worlds(ranks).run(agree_both_ways):
        assert got == [[ranks - 1, 0, 7], [100 + ranks - 1] * 300] * 2


def agree_both_ways():
    exchange = Exchange()
    found = []
    for _ in range(2):
        found += [exchange.agree([exchange.rank, -exchange.rank, 7]), exchange.agree([100 + exchange.rank] * 300)]
        exchange.transport(100, CPU)  # opens the shared memory, if there is more than one rank
    return found
