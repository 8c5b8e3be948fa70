"""The exchange's bench adds what it says it adds, on every rank."""

import pytest
import torch

from fedddp.bench.exchange import PARTS, _exact, compare, line
from fedddp.exchange.group import Exchange


def test_both_ways_are_measured_with_their_parts(worlds):
    for row in worlds(2).run(measure):
        assert set(row["seconds"]) == {"float32", "exact", "masked", *PARTS}
        assert all(seconds > 0 for seconds in row["seconds"].values())
        assert row["bytes_ratio"] == pytest.approx(2.0, abs=1e-3)
        assert "2,000,000 numbers  2 ranks" in line(row)


def measure():
    return compare(2_000_000, Exchange())


def test_the_exact_way_gives_the_mean(worlds):
    for total in worlds(2).run(mean_of_ranks):
        assert total == [0.5, 1.0]


def mean_of_ranks():
    exchange = Exchange()
    value = torch.tensor([1.0, 2.0]) * exchange.rank
    return _exact(2, exchange, [value, torch.ones(1)])["theta"].tolist()
