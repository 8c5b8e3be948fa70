"""bfloat16 products: close to the gradient, stored in float32, the same bits on any number of ranks."""

import pytest
import torch
from torch import nn

from fedddp.clients.autocast import Autocast
from fedddp.clients.oracle import Oracle
from fedddp.config import loading as configuration
from fedddp.core.objective import CrossEntropy
from fedddp.core.params import Layout
from fedddp.core.rng import stream
from tests import forked
from tests.small import MODELS, fresh, run, settings


@pytest.mark.parametrize("rows", [1, 3])
def test_gradients_are_float32_and_close(rows):
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 5))
    layout, generator = Layout.of(module), stream("autocast")
    theta = 0.2 * torch.randn(rows, layout.numel, generator=generator)
    given = (torch.randn(rows, 9, 8, 8, generator=generator), torch.randint(5, (rows, 9), generator=generator))
    exact, _ = Oracle(module, layout, CrossEntropy())(theta, *given)
    rounded, loss = Autocast(module, layout, CrossEntropy())(theta, *given)
    assert rounded.dtype == loss.dtype == torch.float32
    error = (rounded - exact).norm() / exact.norm()
    assert 1e-5 < error < 0.03  # it is another arithmetic, of 8 bits


@pytest.mark.parametrize("model", MODELS)
def test_same_bits_on_any_number_of_ranks(worlds, tmp_path, model):
    words = settings("fedavg", *MODELS[model], "federation.autocast=bf16", "federation.rounds=2")
    one, three = (worlds(n).run(run, words, fresh(tmp_path, str(n)))[0] for n in (1, 3))
    assert one["checksum"] == three["checksum"]
    plain = worlds(1).run(run, [*words[:-2], "federation.rounds=2"], fresh(tmp_path, "plain"))[0]
    assert plain["checksum"] != one["checksum"]


def test_double_precision_refuses():
    with pytest.raises(ValueError, match="must be float32 with federation"):
        run(settings("fedavg", "federation.autocast=bf16", "federation.dtype=float64"), "unused")


def test_less_precision_is_said_recorded_and_hashed(worlds, tmp_path):
    plain, half, third = (
        configuration.load(None, settings("fedavg", *MODELS["mlp"], "federation.rounds=1", *more))
        for more in ([], ["federation.autocast=bf16"], ["federation.tf32=true"])
    )
    assert len({config.hash for config in (plain, half, third)}) == 3
    assert third.federation.precision == "float32, tf32 products on a GPU"
    (done,) = worlds(1).run(run, half, str(tmp_path / "half"))
    assert done["precision"] == "float32, bf16 products in local gradients"
    told = forked.fedddp("run", *settings("fedavg", "federation.rounds=1"), "federation.tf32=true", "--out", tmp_path)
    assert "precision: float32, tf32 products on a GPU; results differ" in told.stdout + told.stderr
    assert "precision:" not in forked.fedddp("run", *settings("fedavg"), "--out", tmp_path / "plain").stderr
