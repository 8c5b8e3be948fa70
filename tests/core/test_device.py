"""A method's tensors stay on its device; tests/cuda asks a real one."""

import json
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.utils import backend_registration

from fedddp.checks import pretend
from fedddp.checks.ranks import apart
from fedddp.config import loading as configuration
from fedddp.core.device import own_device, sharing, to_host
from fedddp.exchange.group import Exchange
from tests import forked
from tests.small import MODELS, run, settings

CPU = torch.device("cpu")

METHODS = ["fedavg", "bayes_admm", "mime", "fednl", "fedbens", "fedlap_func"]


@pytest.mark.skipif(
    not hasattr(backend_registration, "_setup_privateuseone_for_python_backend"), reason="needs a newer torch"
)
def test_no_tensor_lies_on_the_wrong_device():
    command = [sys.executable, "-W", "ignore", "-m", "tests.pretend", *METHODS]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [method for method, *_ in found] == METHODS
    for method, on_cpu, on_device in found:
        assert on_cpu == on_device, method


def test_without_a_gpu_all_is_on_the_host():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert own_device(deterministic=True) == torch.device("cpu")
    assert not torch.are_deterministic_algorithms_enabled()  # a CPU's kernels are, with one thread
    value = torch.ones(2, requires_grad=True)
    (copy,) = to_host({"value": value}).values()
    assert copy.data_ptr() == value.data_ptr()
    assert not copy.requires_grad


def test_several_ranks_share_a_gpu(monkeypatch):
    seen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", seen.append)
    for rank in range(5):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        own_device(deterministic=False)
    assert [device.index for device in seen] == [0, 1, 0, 1, 0]
    for ranks, each in (("1", 1), ("2", 1), ("5", 3)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        assert sharing() == each


def test_tf32_is_as_asked_for_and_off_otherwise(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    flags = torch.backends.cuda.matmul, torch.backends.cudnn
    before = [flag.allow_tf32 for flag in flags]
    try:
        for wanted in (True, False):
            own_device(deterministic=False, tf32=wanted)
            assert [flag.allow_tf32 for flag in flags] == [wanted, wanted]
    finally:
        for flag, value in zip(flags, before, strict=True):
            flag.allow_tf32 = value


def crowded(folder):
    """Two ranks on one pretended device: sums go through the host's memory."""
    exchange = Exchange.connect(CPU)
    exchange.share_devices(2)
    words = settings("bayes_admm", *MODELS["mlp"], "federation.rounds=2")
    checksum = pretend.run(configuration.load(None, words), Path(folder) / "run", exchange, pretend.install())
    return [checksum, exchange.through_host, exchange.transport(1, torch.device(pretend.NAME)).source.device.type]


@pytest.mark.skipif(not pretend.possible(), reason="needs a newer torch")
def test_more_ranks_than_devices_have_the_same_bits(worlds, tmp_path):
    words = settings("bayes_admm", *MODELS["mlp"], "federation.rounds=2")
    (alone,) = worlds(1).run(run, words, str(tmp_path / "alone"))
    found = forked.call(apart, partial(crowded, str(tmp_path)), 2)
    assert found == 2 * [[alone["checksum"], True, "cpu"]]
