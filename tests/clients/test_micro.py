"""A step in parts: local.micro_batch gives the whole batch's gradient in less memory."""

import pytest
import torch
from torch import nn

from fedddp.clients.oracle import Oracle
from fedddp.config import loading as configuration
from fedddp.core.live import Live
from fedddp.core.objective import CrossEntropy
from fedddp.core.params import Layout
from fedddp.runs.build import make_oracle, make_task
from tests.small import settings


def made(micro: int) -> Oracle:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 256, 5)]
    module = nn.Sequential(*layers).double()
    return Oracle(module, Layout.of(module), CrossEntropy(), micro=micro)


@pytest.mark.parametrize("micro", [1, 4, 5, 100])
@pytest.mark.parametrize("short", [False, True])
def test_the_gradient_is_that_of_the_whole_batch(micro, short):
    torch.manual_seed(1)
    whole, parts = made(0), made(micro)
    theta, inputs = 0.1 * torch.randn(2, whole.layout.numel).double(), torch.randn(2, 11, 1, 20, 20).double()
    targets = torch.randint(0, 5, (2, 11))
    weights = None
    if short:
        weights = torch.ones(2, 11).double()
        weights[1, 3:] = 0
    for ours, theirs in zip(
        parts(theta, inputs, targets, weights), whole(theta, inputs, targets, weights), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_a_step_takes_less_memory():
    theta, inputs = torch.randn(1, made(0).layout.numel).double(), torch.randn(1, 64, 1, 20, 20).double()
    targets, peaks = torch.randint(0, 5, (1, 64)), {}
    for micro in (0, 8):
        oracle = made(micro)
        oracle(theta, inputs, targets)
        with Live() as live:
            oracle(theta, inputs, targets)
        peaks[micro] = live.ledger.most
    assert peaks[8] < peaks[0] / 4


def test_the_setting_reaches_the_step_and_is_refused_where_it_would_change_it():
    words = settings("fedavg", "local.micro_batch=3")
    config = configuration.load(None, words)
    assert make_oracle(config, make_task(config, torch.device("cpu"))).micro == 3
    batch_norm = ["model=tests/modules.py:ConvBatchNorm", "model.buffers=average"]
    config = configuration.load(None, [*words, *batch_norm])
    with pytest.raises(ValueError, match=r"local\.micro_batch=3: .*choose model\.buffers=freeze"):
        make_oracle(config, make_task(config, torch.device("cpu")))
