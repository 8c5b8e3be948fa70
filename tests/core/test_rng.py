"""Streams are keyed by name alone; permutations are permutations, row by row."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedddp.core.rng import STREAMS, Streams, key, permutations, stream


@given(st.lists(st.tuples(st.integers(0, 2**62), st.integers(1, 40)), min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_rows_are_permutations_that_ignore_their_neighbours(rows):
    keys, sizes = (torch.tensor(column) for column in zip(*rows, strict=True))
    together = permutations(keys, sizes, int(sizes.max()))
    for row, (k, n) in enumerate(rows):
        alone = permutations(torch.tensor([k]), torch.tensor([n]), n)[0]
        assert torch.equal(together[row, :n], alone)
        assert sorted(alone.tolist()) == list(range(n))


def test_permutations_look_uniform():
    """Each of the 24 orders of 4 things within five sigma of its share over 24,000 keys."""
    keys = torch.tensor([key("uniform", i) for i in range(24_000)])
    rows = permutations(keys, torch.full((24_000,), 4), 4)
    _, counts = rows.unique(dim=0, return_counts=True)
    assert len(counts) == 24
    assert (counts - 1000).abs().max() < 5 * 1000**0.5


def test_names_give_independent_streams():
    draws = [torch.randn(4, generator=stream(*name)) for name in [(0, "a", 1), (0, "a", 2), (0, "b", 1), (1, "a", 1)]]
    assert len({tuple(d.tolist()) for d in draws}) == 4
    assert torch.equal(draws[0], torch.randn(4, generator=stream(0, "a", 1)))


def test_kinds_of_streams():
    own, common, frozen = (Streams(0, kind) for kind in ("independent", "common", "frozen"))
    assert own.key("noise", 1, 2) != own.key("noise", 1, 3)
    assert common.key("noise", 1, 2) == common.key("noise", 1, 3) != common.key("noise", 2, 3)
    assert frozen.key("noise", 1, 2) == frozen.key("noise", 5, 3) != frozen.key("order", 5, 3)


@pytest.mark.parametrize("kind", STREAMS)
def test_keys_of_many_clients_are_the_keys_of_each(kind):
    streams = Streams(62, kind)
    ids = [0, 7, 10**6]
    assert streams.keys("order", 3, ids) == [streams.key("order", 3, client) for client in ids]
