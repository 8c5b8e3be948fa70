"""Kernels by device: who runs them, and that those in Triton have the bits of those in C and of tensor operations.

There is no GPU here: Triton's interpreter runs them with numpy, in a process of its own, and the compiler shows the
code that it would give a GPU. tests/cuda/test_triton.py asks a GPU the same.
"""

import ctypes
import importlib.util
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from fedddp.core import kernels
from tests.core.test_kernels import compiled

KERNELS = ["perturb", "dropout", "add_pull", "ivon_step", "gather", "to_grid", "from_grid", "adam_step", "sgd_step"]
installed = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def ask(*words, **environment):
    """What tests/core/triton_cases.py finds out."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.core.triton_cases", *words]
    own = {**os.environ, "OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "default", **environment}
    done = subprocess.run(command, env=own, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def interpreted():
    return ask("compare", "cpu", TRITON_INTERPRET="1")


@pytest.fixture(scope="module")
def code(tmp_path_factory):
    return ask("ptx", TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path_factory.mktemp("triton")))


@installed
@compiled
@pytest.mark.parametrize("name", KERNELS)
def test_triton_has_the_bits_of_c_and_of_tensors(interpreted, name):
    for what, (comparisons, different) in interpreted[name].items():
        assert comparisons >= 30
        assert not different, f"{what}: (size, rows, strange numbers, variant)"


@installed
def test_cross_entropy_in_one_launch_is_torchs_to_rounding():
    assert max(ask("entropies", "cpu", TRITON_INTERPRET="1")) < 1e-5  # a small loss is a difference of large numbers


def test_cross_entropy_with_tensors_is_torchs():
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    target, share = torch.tensor([0, 3, 1, 1, 2, 0]), torch.rand(6, generator=torch.Generator().manual_seed(1))
    losses, slope = torch.empty(6), torch.empty(6, 4)
    kernels.in_c("cross_entropy", 6, 4, logits.detach(), target, share, losses, slope)
    expected = torch.nn.functional.cross_entropy(logits, target, reduction="none") * share
    torch.testing.assert_close(losses, expected.detach())
    torch.testing.assert_close(slope, torch.autograd.grad(expected.sum(), logits)[0])


@installed
def test_the_compiler_rounds_every_operation_as_it_is_written(code):
    """No fma; divisions, roots and conversions to the nearest; nothing takes small numbers for 0."""
    rounds = {"add", "sub", "mul", "div", "sqrt"}
    for name, operations in code.items():
        assert operations, name
        for operation in operations:
            word, *how = operation.split(".")
            assert word in rounds | {"cvt", "abs", "selp", "setp", "neg"}, (name, operation)
            assert word not in rounds or how in (["rn", "f32"], ["rn", "f64"]), (name, operation)
            assert not {"ftz", "approx", "full"} & set(how), (name, operation)


def test_importing_fedddp_does_not_import_triton():
    words = "import sys, fedddp.cli, fedddp.api.running, fedddp.local.ivon; assert 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-W", "ignore", "-c", words], check=True)


@pytest.mark.parametrize("there", [None, SimpleNamespace(__version__="3.5.1")], ids=["none", "too old"])
def test_without_triton_cuda_has_no_kernels(there, monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", there)
    assert kernels.triton.__wrapped__() is None


@installed
def test_where_triton_cannot_launch_cuda_has_no_kernels(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)  # and there is none
    with pytest.warns(UserWarning, match="no fused kernels on this GPU"):
        assert kernels.triton.__wrapped__() is None


@installed
def test_with_triton_cuda_has_kernels_unless_they_are_switched_off(monkeypatch):
    assert kernels.triton.__wrapped__() is not None
    monkeypatch.setenv("FEDDDP_KERNELS", "off")
    assert kernels.triton.__wrapped__() is None


def test_a_device_has_the_kernels_that_one_gives_it(monkeypatch):
    """torch's device without memory stands for any other."""
    launched, there, here = [], torch.empty(3, 5, device="meta"), torch.empty(3, 5)
    assert not kernels.suit([there, there])
    monkeypatch.setitem(kernels.BACKENDS, "meta", lambda name, *arguments: launched.append((name, arguments)))
    assert kernels.suit([there, there])
    assert not kernels.suit([there, here])
    assert not kernels.suit([there, there.double()])
    assert not kernels.suit([there, there.T])
    kernels.call("perturb", 3, 5, here, there, 0.5)
    assert launched == [("perturb", (3, 5, here, there, 0.5))]
    monkeypatch.setenv("FEDDDP_KERNELS", "off")
    assert not kernels.suit([there, there])


@compiled
def test_the_number_of_a_draw_may_be_a_tensor():
    found = []
    for draw in (7, torch.tensor(7)):
        rows = [torch.ones(2, 9) for _ in range(4)]
        kernels.call("perturb", 2, 9, torch.tensor([3, 4]), draw, torch.arange(16384).short(), 0.5, *rows)
        found.append(rows[3])
    assert torch.equal(*found)
    assert found[0].unique().numel() > 9


@compiled
def test_c_refuses_a_number_in_the_place_of_another():
    """A float handed over as an integer would be read as something else."""
    rows = [torch.ones(1, 4) for _ in range(3)]
    with pytest.raises(ctypes.ArgumentError, match="argument 2"):
        kernels.call("add_pull", 1, 4.0, *rows)
    word = torch.zeros(4, dtype=torch.int64)
    kernels.call("to_grid", 4, torch.ones(4), 8, 0, word)  # an integer is as good as a float
    assert word.tolist() == [8] * 4


@pytest.mark.parametrize("decoupled", [0, 1])
def test_on_the_cpu_adam_is_torchs(decoupled):
    start = [torch.rand(2, 33) for _ in range(4)]
    ours, theirs = ([tensor.clone() for tensor in start] for _ in range(2))
    taken, lr = torch.tensor([1.0, 5.0]), torch.tensor([0.1, 0.1], dtype=torch.float64)
    kernels.call("adam_step", 2, 33, *ours, taken, lr, 0.9, 0.99, 0.01, 1e-8, decoupled)
    optimizer = torch.optim.AdamW if decoupled else torch.optim.Adam
    for row in range(2):
        parameter = torch.nn.Parameter(theirs[0][row])
        parameter.grad = theirs[1][row]
        made = optimizer([parameter], lr=0.1, betas=(0.9, 0.99), weight_decay=0.01, fused=True)
        state = {"step": taken[row] - 1, "exp_avg": theirs[2][row], "exp_avg_sq": theirs[3][row]}
        made.state[parameter] = state
        made.step()
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize(("momentum", "nesterov"), [(0.0, 0), (0.9, 0), (0.9, 1)])
def test_on_the_cpu_sgd_is_torchs(momentum, nesterov):
    theta, grad, velocity = (torch.rand(2, 33) for _ in range(3))
    ours, moved = theta.clone(), velocity.clone()
    rates = torch.tensor([0.1, 0.2], dtype=torch.float64)
    kernels.call("sgd_step", 2, 33, ours, grad, moved, rates, momentum, nesterov, 0.01)
    for row, lr in enumerate((0.1, 0.2)):
        parameter = torch.nn.Parameter(theta[row])
        parameter.grad = grad[row]
        options = {"momentum": momentum, "nesterov": bool(nesterov), "weight_decay": 0.01, "fused": True}
        made = torch.optim.SGD([parameter], lr=lr, **options)
        if momentum:
            made.state[parameter] = {"momentum_buffer": velocity[row]}
        made.step()
    assert torch.equal(ours, theta)
    assert torch.equal(moved, velocity)
