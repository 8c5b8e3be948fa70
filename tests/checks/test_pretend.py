"""The pretended device: it behaves as a real one where method code can tell."""

import pytest
import torch

from fedddp.checks import pretend
from fedddp.checks.ranks import apart
from tests import forked

pytestmark = pytest.mark.skipif(not pretend.possible(), reason="needs a newer torch")


def shapes_and_data() -> list[object]:
    device = pretend.install()
    with pretend.Device():
        row = torch.ones(1, 3, device=device).squeeze_(0)
        parameter = torch.nn.Parameter(torch.zeros(3, device=device))
        parameter.data = row * 2
        return [row.device.type, list(row.shape), row.split([1, 2])[1].tolist(), (parameter + 1).tolist()]


def mixed() -> None:
    device = pretend.install()
    with pretend.Device():
        torch.ones(3, device=device) + torch.ones(3)


def number_and_index() -> list[float]:
    device = pretend.install()
    with pretend.Device():
        value = torch.arange(3.0, device=device) + torch.tensor(1.0)
        return value[torch.tensor([2, 0])].tolist()


def generator_of_the_cpu() -> None:
    device = pretend.install()
    with pretend.Device():
        torch.rand(3, device=device, generator=torch.Generator())


def test_changes_in_place_and_of_data():
    assert forked.call(apart, shapes_and_data) == [["pretend", [3], [1.0, 1.0], [3.0, 3.0, 3.0]]]


def test_a_number_and_an_index_may_come_from_the_cpu():
    assert forked.call(apart, number_and_index) == [[3.0, 1.0]]


def test_tensors_and_generators_may_not():
    with pytest.raises(
        AssertionError, match=r"aten.add.Tensor: tensors of the device and of the CPU \(tests/checks/test_pret"
    ):
        forked.call(apart, mixed)
    with pytest.raises(AssertionError, match="a generator of the CPU for a tensor of the device"):
        forked.call(apart, generator_of_the_cpu)
