"""A process of its own with a GPU and nccl, so that the CPU tests of the same session are left alone."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, Protocol

import pytest
import torch

from fedddp.core.device import own_device
from fedddp.exchange.group import Exchange


class Gpu(Protocol):
    def __call__(self, function: Any, *args: Any) -> Any: ...


def start() -> None:
    Exchange.connect(own_device(deterministic=True))


@pytest.fixture(scope="session")
def gpu() -> Iterator[Gpu]:
    """`gpu(f, x)` is f(x) in that process."""
    if not torch.cuda.is_available():
        pytest.skip("no GPU on this machine")
    with ProcessPoolExecutor(1, mp_context=get_context("spawn"), initializer=start) as one:
        yield lambda function, *args: one.submit(function, *args).result()
