"""Dense chains by hand give what autograd gives, and only what is a chain is taken for one."""

import pytest
import torch
from torch import nn

from fedddp.clients.chain import Chain
from fedddp.clients.oracle import Oracle
from fedddp.core.objective import CrossEntropy, SquaredError
from fedddp.core.params import Layout


class Named(nn.Sequential):
    """As people write it; its forward is nn.Sequential's."""

    def __init__(self) -> None:
        super().__init__(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 3))


class Doubled(Named):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


CHAINS = {
    "of one's own": Named(),
    "relu": nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.ReLU(), nn.Linear(7, 3)),
    "sigmoid": nn.Sequential(nn.Flatten(), nn.Linear(12, 7), nn.Sigmoid(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 3)),
    "no bias": nn.Sequential(nn.Flatten(), nn.Linear(12, 3, bias=False)),
    "nested": nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(12, 4), nn.ReLU()), nn.Linear(4, 3)),
}
REGRESSION = nn.Sequential(nn.Flatten(), nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 1))
OTHERS = {
    "a forward of its own": Doubled(),
    "dropout": nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.Dropout(), nn.Linear(4, 3)),
    "norm": nn.Sequential(nn.Flatten(), nn.Linear(12, 4), nn.LayerNorm(4), nn.Linear(4, 3)),
    "late flatten": nn.Sequential(nn.Linear(4, 4), nn.Flatten(), nn.Linear(12, 3)),
    "ends in an activation": nn.Sequential(nn.Flatten(), nn.Linear(12, 3), nn.Sigmoid()),
    "shared before the end": (lambda layer: nn.Sequential(nn.Flatten(), layer, nn.ReLU(), layer, nn.Linear(12, 3)))(
        nn.Linear(12, 12)
    ),
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


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("short", [False, True])
def test_a_step_within_the_products_is_down_the_gradient(name, short):
    module = CHAINS[name].double()
    layout, generator = Layout.of(module), torch.Generator().manual_seed(0)
    theta = torch.randn(4, layout.numel, dtype=torch.float64, generator=generator)
    inputs = torch.randn(4, 6, 3, 4, dtype=torch.float64, generator=generator)
    batch = inputs, torch.randint(3, (4, 6), generator=generator)
    weights = (torch.arange(6) < torch.tensor([[6], [6], [4], [1]])).double() if short else None
    oracle = Oracle(module, layout, CrossEntropy())
    grad, loss = oracle(theta, *batch, weights)
    moved = theta.clone()
    assert torch.equal(oracle.lower(moved, *batch, weights, None, 0.3), loss)
    torch.testing.assert_close(moved, theta - 0.3 * grad, rtol=1e-12, atol=1e-12)


def test_a_step_within_the_products_has_the_same_bits_in_any_company():
    """A client may be computed beside any number of others, as cohorts differ with the ranks."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(49, 40), nn.Sigmoid(), nn.Linear(40, 10))
    layout, generator = Layout.of(module), torch.Generator().manual_seed(0)
    oracle = Oracle(module, layout, CrossEntropy())
    theta = torch.randn(9, layout.numel, generator=generator)
    inputs, targets = torch.randn(9, 32, 49, generator=generator), torch.randint(10, (9, 32), generator=generator)
    alone = theta.clone()
    for row in range(9):
        oracle.lower(alone[row : row + 1], inputs[row : row + 1], targets[row : row + 1], None, None, 0.3)
    for rows in range(2, 10):
        together = theta.clone()
        oracle.lower(together[:rows], inputs[:rows], targets[:rows], None, None, 0.3)
        assert torch.equal(together[:rows], alone[:rows])


def test_what_is_no_chain_is_left_to_others():
    module = OTHERS["norm"]
    oracle, theta = Oracle(module, Layout.of(module), CrossEntropy()), torch.zeros(1, Layout.of(module).numel)
    assert not oracle.lowers(torch.ones(1, 2, 3, 4))
    assert not theta.any()
