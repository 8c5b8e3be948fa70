"""Convolutions by hand give what autograd gives, and only what is such a stack is taken for one."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.func import functional_call

from fedddp.clients.dropout import Masked, Masks
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
    "inputs dropped": (Masked(0.5, 0), nn.Conv2d(2, 4, 3), *dense(144)),
    "not flat": (nn.Conv2d(2, 4, 3), nn.Linear(6, 3)),
    "a ReLU on the inputs": (nn.ReLU(), nn.Conv2d(2, 4, 3), *dense(144)),
    "reflected": (nn.Conv2d(2, 4, 3, padding=1, padding_mode="reflect"), *dense(256)),
    "no end": (nn.Conv2d(2, 4, 3), nn.Flatten()),
}


DROPPED = {
    "dropped": (nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Dropout2d(0.3), nn.MaxPool2d(2), *dense(36)),
    "dropped, then cut": (nn.Conv2d(2, 4, 3), nn.Dropout(0.4), nn.ReLU(), nn.Flatten(), nn.Dropout(), *dense(144)[1:]),
    "hidden dropped": (nn.Conv2d(2, 4, 3), *dense(144)[:-1], nn.Dropout(), nn.Linear(5, 3)),
}


def problem(layers, dtype=torch.float64, size=8, rows=1):
    module = nn.Sequential(*deepcopy(layers)).to(dtype)
    layout, generator = Layout.of(module), torch.Generator().manual_seed(0)
    theta = 0.3 * torch.randn(rows, layout.numel, dtype=dtype, generator=generator)
    inputs = torch.randn(rows, 6, 2, size, size, dtype=dtype, generator=generator)
    return module, layout, theta, inputs, torch.randint(3, (rows, 6), generator=generator)


@pytest.mark.parametrize("name", [name for name in STACKS if name != "an axis added"] + list(DROPPED))
@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("objective", [CrossEntropy(), SquaredError()])
def test_by_hand_equals_autograd(name, rows, short, objective):
    """Of one client, and of several as convolutions in groups; both are held to autograd, one client at a time."""
    module, layout, theta, inputs, targets = problem((STACKS | DROPPED)[name], rows=rows)
    if isinstance(objective, SquaredError):
        module[-1] = nn.Linear(5, 1, dtype=torch.float64)
        layout, targets = Layout.of(module), targets.double()
        theta = theta[:, : layout.numel].clone()
    weights = (torch.arange(6) < torch.tensor([[4], [6], [1]][:rows])).double() if short else None
    by_hand, by_loop = Oracle(module, layout, objective), Oracle(module, layout, objective, vectorise=False)
    assert by_hand.stack is not None
    assert by_loop.stack is None
    keys = {layer: torch.arange(rows) + number for number, layer in enumerate(by_hand.dropout.layers)}
    masks = by_hand.dropout.masks(inputs, Masks(keys), torch.float64)
    assert bool(masks) == (name in DROPPED)
    start, given = theta.clone(), inputs.clone()
    grad, loss = by_hand(theta, inputs, targets, weights, masks=masks)
    wanted, truth = by_loop(theta, inputs, targets, weights, masks=masks)
    torch.testing.assert_close(grad, wanted, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(loss, truth, rtol=1e-12, atol=1e-12)
    assert torch.equal(theta, start)
    assert torch.equal(by_hand.lower(theta, inputs, targets, weights, None, 0.3, masks), loss)
    torch.testing.assert_close(theta, start - 0.3 * wanted, rtol=1e-12, atol=1e-12)
    assert torch.equal(inputs, given)


@pytest.mark.parametrize("rows", [1, 2])
def test_a_pull_is_the_gradient_of_what_has_that_slope(rows):
    """Of a single batch in six parts side by side, because these convolutions are narrow."""
    module, layout, theta, inputs, _ = problem(STACKS["two, with biases"], rows=rows)
    stack, slope = Stack.of(module, layout, CrossEntropy()), torch.randn(rows, 6, 3, dtype=torch.float64)
    assert stack._parts(inputs) == (6 if rows == 1 else 1)
    pulled = stack.pull(theta, inputs, lambda outputs: slope)
    for row in range(rows):
        params = {name: view.requires_grad_() for name, view in layout.views(theta[row].clone()).items()}
        pieces = torch.autograd.grad((functional_call(module, params, inputs[row]) * slope[row]).sum(), params.values())
        torch.testing.assert_close(
            pulled[row], torch.cat([piece.flatten() for piece in pieces]), rtol=1e-12, atol=1e-12
        )


def test_padding_that_a_device_keeps_has_no_weight():
    """On a CPU a short batch is computed without its padding; elsewhere with it."""
    module, layout, theta, inputs, targets = problem(STACKS["two, with biases"])
    stack, weights = Stack.of(module, layout, CrossEntropy()), (torch.arange(6) < 4).double().unsqueeze(0)
    whole, part = torch.empty_like(theta), torch.empty_like(theta)
    stack(theta, inputs, targets, weights, {}, whole)
    stack(theta, inputs[:, :4], targets[:, :4], None, {}, part)
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
