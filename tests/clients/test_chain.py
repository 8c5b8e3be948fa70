"""Dense chains by hand give what autograd gives, and only what is a chain is taken for one."""

import pytest
import torch
from torch import nn

from fedddp.clients.chain import Chain
from fedddp.clients.oracle import Oracle
from fedddp.core.objective import CrossEntropy, SquaredError
from fedddp.core.params import Layout

CHAINS = {
    "relu": nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 3)),
    "sigmoid": nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.Sigmoid(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3)),
    "no bias": nn.Sequential(nn.Flatten(), nn.Linear(12, 3, bias=False)),
    "nested": nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(12, 4), nn.ReLU()), nn.Linear(4, 3)),
}
REGRESSION = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 1))
OTHERS = {
    "dropout": nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.Dropout(), nn.Linear(4, 3)),
    "norm": nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.LayerNorm(4), nn.Linear(4, 3)),
    "late flatten": nn.Sequential(nn.Linear(4, 4), nn.Flatten(), nn.Linear(12, 3)),
    "ends in an activation": nn.Sequential(nn.Flatten(), nn.Linear(12, 3), nn.Sigmoid()),
    "shared": (lambda layer: nn.Sequential(nn.Flatten(), layer, nn.ReLU(), layer))(nn.Linear(12, 12)),
}


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("short", [False, True])
@pytest.mark.parametrize("objective", [CrossEntropy(), SquaredError()])
def test_by_hand_equals_autograd(name, short, objective):
    module = CHAINS[name].double() if isinstance(objective, CrossEntropy) else REGRESSION.double()
    layout, generator = Layout.of(module), torch.Generator().manual_seed(0)
    theta = torch.randn(4, layout.numel, dtype=torch.float64, generator=generator)
    inputs = torch.randn(4, 6, 3, 4, dtype=torch.float64, generator=generator)
    targets = torch.randint(3, (4, 6), generator=generator)
    if isinstance(objective, SquaredError):
        targets = targets.double()
    weights = (torch.arange(6) < torch.tensor([[6], [6], [4], [1]])).double() if short else None
    by_hand = Oracle(module, layout, objective)
    by_loop = Oracle(module, layout, objective, vectorise=False)
    assert by_hand.chain is not None
    for got, wanted in zip(
        by_hand(theta, inputs, targets, weights), by_loop(theta, inputs, targets, weights), strict=True
    ):
        torch.testing.assert_close(got, wanted, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", OTHERS)
def test_other_modules_are_left_to_autograd(name):
    module = OTHERS[name]
    assert Chain.of(module, Layout.of(module), CrossEntropy()) is None
