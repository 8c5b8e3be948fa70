"""Blocks that compute their activations twice: local.recompute gives the same bits in less memory."""

import pytest
import torch
from torch import nn

from fedddp.clients.oracle import Oracle
from fedddp.clients.recompute import blocks
from fedddp.config import loading as configuration
from fedddp.core.live import Live
from fedddp.core.objective import CrossEntropy
from fedddp.core.params import Layout
from fedddp.runs.build import make_oracle, make_task
from tests.small import settings

DEPTH, WIDTH = 8, 32


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.Tanh(), nn.Dropout(0.2), nn.Linear(4 * WIDTH, WIDTH))


def made(recompute: bool) -> Oracle:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, WIDTH), *(block() for _ in range(DEPTH)), nn.Linear(WIDTH, 5)).double()
    return Oracle(module, Layout.of(module), CrossEntropy(), vectorise=False, recompute=recompute)


def asked(oracle: Oracle, examples: int = 11) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(1)
    theta, inputs = 0.1 * torch.randn(2, oracle.layout.numel).double(), torch.randn(2, examples, 6).double()
    weights = torch.ones(2, examples).double()
    weights[1, 3:] = 0
    oracle.dropout.probe(inputs)
    shape = (2, examples, 4 * WIDTH)
    masks = {name: (torch.rand(shape) > 0.2).double() / 0.8 for name in dict(oracle.module.named_buffers())}
    assert len(masks) == DEPTH
    return oracle(theta, inputs, torch.randint(0, 5, (2, examples)), weights, masks=masks)


def test_the_outermost_layers_of_layers_are_blocks():
    inner = block()
    module = nn.ModuleDict({"body": nn.ModuleList([inner, block()]), "head": nn.Sequential(nn.Linear(2, 2), nn.ReLU())})
    assert [*blocks(module)] == [*module["body"]]


def test_the_bits_are_those_of_a_plain_step():
    for ours, theirs in zip(asked(made(True)), asked(made(False)), strict=True):
        assert torch.equal(ours, theirs)


def test_a_step_takes_less_memory():
    peaks = []
    for recompute in (False, True):
        oracle = made(recompute)
        asked(oracle)
        with Live() as live:
            asked(oracle, 2000)
        peaks.append(live.ledger.most)
    assert peaks[1] < 0.7 * peaks[0]


def test_it_is_refused_where_there_are_no_blocks_and_where_statistics_would_count_twice():
    words = settings("fedavg", "local.recompute=true")
    config = configuration.load(None, words)
    with pytest.raises(ValueError, match=r"local\.recompute=true: the model has no blocks, .*local\.micro_batch"):
        make_oracle(config, make_task(config, torch.device("cpu")))
    config = configuration.load(None, [*words, "model=tests/modules.py:ConvBatchNorm", "model.buffers=average"])
    with pytest.raises(ValueError, match=r"local\.recompute=true: .*choose model\.buffers=freeze"):
        make_oracle(config, make_task(config, torch.device("cpu")))
