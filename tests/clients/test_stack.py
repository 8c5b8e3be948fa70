"""Convolutions by hand give what autograd gives, and only what is such a stack is taken for one."""

import pytest
import torch
from torch import nn

from fedddp.clients.oracle import Oracle
from fedddp.clients.stack import Stack
from fedddp.core.objective import CrossEntropy, SquaredError
from fedddp.core.params import Layout
from fedddp.models import lenet


def dense(width, outputs=3):
    return nn.Flatten(), nn.Linear(width, 5), nn.ReLU(), nn.Linear(5, outputs)


STACKS = {
    "lenet's kind": (nn.Conv2d(2, 4, 3, bias=False), nn.MaxPool2d(2), nn.ReLU(), *dense(36)),
    "two, with biases": (nn.Conv2d(2, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 3, stride=2), nn.ReLU(), *dense(27)),
    "groups and dilation": (nn.Conv2d(2, 4, 3, groups=2, dilation=2), nn.MaxPool2d(3, 1), *dense(16)),
    "nested": (nn.Sequential(nn.Conv2d(2, 1, 3), nn.ReLU()), nn.MaxPool2d(2, padding=1), *dense(16)),
    "an axis added": (nn.Unflatten(1, (1, 2)), nn.Unflatten(2, (1, 2)), nn.Flatten(1, -1), nn.Linear(128, 3)),
}
OTHERS = {
    "normed": (nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), *dense(144)),
    "dropped": (nn.Conv2d(2, 4, 3), nn.Dropout(), *dense(144)),
    "not flat": (nn.Conv2d(2, 4, 3), nn.Linear(6, 3)),
    "a ReLU on the inputs": (nn.ReLU(), nn.Conv2d(2, 4, 3), *dense(144)),
    "reflected": (nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), *dense(256)),
    "no end": (nn.Conv2d(2, 4, 3), nn.Flatten()),
}


def problem(layers, dtype=torch.float64, size=8):
    module = nn.Sequential(*layers).to(dtype)
    layout, generator = Layout.of(module), torch.Generator().manual_seed(0)
    theta = 0.3 * torch.randn(1, layout.numel, dtype=dtype, generator=generator)
    inputs = torch.randn(1, 6, 2, size, size, dtype=dtype, generator=generator)
    return module, layout, theta, inputs, torch.randint(3, (1, 6), generator=generator)


@pytest.mark.parametrize("name", [name for name in STACKS if name != "an axis added"])
@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("objective", [CrossEntropy(), SquaredError()])
def test_by_hand_equals_autograd(name, short, objective):
    module, layout, theta, inputs, targets = problem(STACKS[name])
    if isinstance(objective, SquaredError):
        module[-1] = nn.Linear(5, 1, dtype=torch.float64)
        layout, targets = Layout.of(module), targets.double()
        theta = theta[:, : layout.numel]
    weights = (torch.arange(6) < 4).double().unsqueeze(0) if short else None
    by_hand, by_loop = Oracle(module, layout, objective), Oracle(module, layout, objective, vectorise=False)
    assert by_hand.stack is not None
    assert by_loop.stack is None
    start, given = theta.clone(), inputs.clone()
    grad, loss = by_hand(theta, inputs, targets, weights)
    wanted, truth = by_loop(theta, inputs, targets, weights)
    torch.testing.assert_close(grad, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(loss, truth, rtol=1e-12, atol=1e-12)
    assert torch.equal(theta, start)
    assert torch.equal(by_hand.lower(theta, inputs, targets, weights, None, 0.3), loss)
    torch.testing.assert_close(theta, start - 0.3 * wanted, rtol=1e-12, atol=1e-12)
    assert torch.equal(inputs, given)


def test_padding_that_a_device_keeps_has_no_weight():
    """On a CPU a short batch is computed without its padding; elsewhere with it."""
    module, layout, theta, inputs, targets = problem(STACKS["two, with biases"])
    stack, weights = Stack.of(module, layout, CrossEntropy()), (torch.arange(6) < 4).double()
    whole, part = torch.empty_like(theta[0]), torch.empty_like(theta[0])
    stack.grad(theta[0], inputs[0], targets[0], weights, whole)
    stack.grad(theta[0], inputs[0, :4], targets[0, :4], None, part)
    torch.testing.assert_close(whole, part, rtol=1e-12, atol=1e-12)


def test_lenet_is_a_stack():
    module = lenet.Model().build((28, 28), 10)
    assert Oracle(module, Layout.of(module), CrossEntropy()).stack is not None


def test_a_dense_model_is_none():
    module = nn.Sequential(*STACKS["an axis added"])
    assert Stack.of(module, Layout.of(module), CrossEntropy()) is None


@pytest.mark.parametrize("name", OTHERS)
def test_other_modules_are_left_to_autograd(name):
    module = nn.Sequential(*OTHERS[name])
    assert Stack.of(module, Layout.of(module), CrossEntropy()) is None


def test_shared_and_frozen_layers_are_left_to_autograd():
    layer = nn.Conv2d(2, 2, 3, padding=1)
    shared = nn.Sequential(layer, nn.ReLU(), layer, *dense(128))
    assert Stack.of(shared, Layout.of(shared), CrossEntropy()) is None
    frozen = nn.Sequential(nn.Conv2d(2, 4, 3).requires_grad_(False), *dense(144))
    assert Stack.of(frozen, Layout.of(frozen), CrossEntropy()) is None
