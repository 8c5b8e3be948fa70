"""Recording and replaying an oracle: here by running it again on its own buffers, on a GPU as a graph (tests/cuda)."""

import pytest
import torch
from torch import nn

from fedddp.clients.graphs import Graphed
from fedddp.clients.oracle import Oracle
from fedddp.core.objective import CrossEntropy
from fedddp.core.params import Layout
from fedddp.core.rng import stream

MODULES = {
    "chain": lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.Tanh(), nn.Linear(7, 3)),
    "vmap": lambda: nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.GELU(), nn.Linear(7, 3)),
}


def rerun(calls):
    """A recorder that needs no GPU: to replay is to call again."""

    def record(function):
        def again():
            calls.append(1)
            for old, new in zip(outputs, function(), strict=True):
                old.copy_(new)

        outputs = function()
        return outputs, again

    return record


def batch(seed, rows, short):
    generator = stream("graphs", seed)
    inputs, targets = torch.randn(rows, 5, 3, 4, generator=generator), torch.randint(3, (rows, 5), generator=generator)
    weights = (torch.arange(5) < 3).float().expand(rows, 5) if short else None
    return torch.randn(rows, Layout.of(MODULES["chain"]()).numel, generator=generator), inputs, targets, weights


@pytest.mark.parametrize("kind", MODULES)
def test_what_is_replayed_is_what_is_computed(kind):
    module, calls = MODULES[kind](), []
    oracle = Oracle(module, Layout.of(module), CrossEntropy())
    graphed = Graphed(oracle, rerun(calls))
    for seed, (rows, short) in enumerate([(3, False), (3, False), (2, True), (3, False), (2, True), (1, False)]):
        given = batch(seed, rows, short)
        out = torch.empty_like(given[0])
        grad, loss = graphed(*given, out=out)
        wanted = oracle(*given)
        assert torch.equal(grad, wanted[0])
        assert torch.equal(loss, wanted[1])
        assert grad.data_ptr() == out.data_ptr()
    assert len(calls) == 6
    assert len(graphed.tapes) == 3  # one for each shape


def test_results_outlive_the_next_replay():
    module = MODULES["chain"]()
    graphed = Graphed(Oracle(module, Layout.of(module), CrossEntropy()), rerun([]))
    kept = graphed(*batch(0, 2, False))
    first = [tensor.clone() for tensor in kept]
    graphed(*batch(1, 2, False))
    assert all(torch.equal(a, b) for a, b in zip(kept, first, strict=True))


def test_a_loop_that_must_know_how_long_a_batch_is_is_not_recorded():
    module, calls = MODULES["vmap"](), []
    oracle = Oracle(module, Layout.of(module), CrossEntropy())
    grad, _ = Graphed(oracle, rerun(calls))(*batch(0, 1, True))
    assert torch.equal(grad, oracle(*batch(0, 1, True))[0])
    assert not calls
