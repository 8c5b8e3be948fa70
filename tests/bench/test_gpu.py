"""The prediction's arithmetic against closed forms, and the command without a GPU."""

import pytest
import torch

from fedddp.bench import gpu
from fedddp.config import loading as configuration
from fedddp.runs.build import make_task
from tests import forked


@pytest.fixture(scope="module")
def task():
    config = configuration.load(None, [*gpu.METHODS["fedavg"], *gpu.MODELS["mlp"]])
    return make_task(config, torch.device("cpu"))


def test_operations_of_an_mlp_are_its_products(task):
    """Two for each weight forward, two for its gradient, and two for the slope, which the inputs do not need."""
    weights = [784 * 200, 200 * 100, 100 * 10]
    assert gpu.operations(task) == 4 * sum(weights) + 2 * sum(weights[1:])


def test_a_ring_sends_each_word_almost_twice():
    device = gpu.Device(flops=1.0, bandwidth=1.0, link=8.0)
    assert gpu.exchange(device, params=100, fields=2, devices=1) == 0
    assert gpu.exchange(device, params=100, fields=2, devices=4) == 2 * 3 / 4 * 200


def test_a_step_is_bound_by_what_takes_longest(task):
    slow_host = gpu.step(gpu.DEVICES["A100"], kernels=1000, task=task, solver="sgd", width=1)
    assert slow_host.launches == pytest.approx(1000 * gpu.LAUNCH)
    assert max(slow_host) == slow_host.launches
    wide = gpu.step(gpu.DEVICES["A100"], kernels=10, task=task, solver="sgd", width=1000)
    assert wide.arithmetic == pytest.approx(1000 * gpu.BATCH * gpu.operations(task) / 19.5e12)
    assert max(wide) > wide.launches


@pytest.mark.skipif(torch.cuda.is_available(), reason="then it measures, too")
def test_without_a_gpu_the_command_says_that_it_predicts():
    done = forked.fedddp("bench", "gpu", "device=H100", "model=mlp")
    assert done.returncode == 0, done.stderr
    head, *lines = done.stdout.splitlines()
    assert head.startswith("predicted, not measured")
    assert [line.split()[:5] for line in lines] == [
        [method, "mlp", devices, "x", "H100"] for method in ("fedavg", "bayes_admm") for devices in "18"
    ]


def test_an_unknown_device_is_named():
    done = forked.fedddp("bench", "gpu", "device=B9")
    assert done.returncode == 2
    assert "device=B9: must be A100, H100" in done.stderr
