"""A method's tensors stay on its device; tests/cuda asks a real one."""

import json
import subprocess
import sys

import pytest
import torch
from torch.utils import backend_registration

from fedddp.core.device import own_device, to_host

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
