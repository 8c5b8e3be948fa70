"""The kernels in Triton on a GPU, beside those in C and tensor operations on the CPU: the same bits.

No GPU has run them yet. What only this file can find out:

- whether a GPU's roundings are those of the interpreter (the code asks for them: tests/core/test_triton.py);
- whether the numbers and counters that they are given at a launch are read as meant;
- whether a CUDA graph can hold them, its counter on the device.
"""

import importlib.util

import pytest
import torch

from tests.core.test_triton import KERNELS, ask

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed"),
]


@pytest.fixture(scope="module")
def launched():
    if not torch.cuda.is_available():
        pytest.skip("no GPU on this machine")
    return ask("compare", "cuda", TRITON_INTERPRET="0")


@pytest.mark.parametrize("name", KERNELS)
def test_a_gpu_has_the_bits_of_c_and_of_tensors(launched, name):
    for what, (comparisons, different) in launched[name].items():
        assert comparisons >= 30
        assert not different, f"{what}: (size, rows, strange numbers, variant)"


def test_a_graph_draws_the_same_noise_with_its_counter_on_the_device():
    assert ask("graph", TRITON_INTERPRET="0") == 0
