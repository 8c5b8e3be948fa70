"""FedLap's and FedDyn's optima of a logistic regression, in small, and how near each method comes to its own."""

import pytest
import torch

from fedddp.core.objective import Binary
from fedddp.figures import fedlap_targets
from fedddp.figures._duality import linear_task
from fedddp.figures._least_squares import cohort
from fedddp.figures.fedlap_targets import Way


def problem():
    """Two alike clients of a task with flipped labels, so that there is a minimiser without decay as well."""
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(40, 3, generator=generator, dtype=torch.float64) for _ in range(2)]
    wanted = [(x[:, 0] + torch.randn(40, generator=generator, dtype=torch.float64) > 0).double() for x in inputs]
    return linear_task(inputs, wanted, outputs=1, classes=0, objective=Binary())


@pytest.mark.parametrize("delta", [0.0, 0.1, 10.0])
def test_the_optimum_has_no_slope(delta):
    task = problem()
    best = fedlap_targets.optimum(task, delta)
    slope = cohort(task, 0).full_grad(best.expand(2, -1)).sum(0) + delta * best
    assert float(slope.norm()) < 1e-7
    other = fedlap_targets.train_loss(task, best + 0.01, delta)
    assert fedlap_targets.train_loss(task, best, delta) < other


def test_both_come_down_to_their_own_optimum():
    """FedLap with delta = 1 within two rounds, as published; both end within a hundredth."""
    found = fedlap_targets.ways(problem(), rounds=8)
    assert found["FedLap, δ = 1"].near() <= 2
    for name in ("FedLap, δ = 1", "FedDyn, α = 1"):
        assert found[name].above[0] > 0.1
        assert 0 <= found[name].above[-1] < 0.01


def test_near_is_where_it_stays():
    assert Way([1.0, 0.005, 0.02, 0.001], []).near() == 3
    assert Way([1.0, 0.02], []).near() is None
    assert Way([float("nan"), 0.001], []).near() == 1


def test_it_is_drawn(tmp_path):
    way = Way([1.0, 0.005], [0.7, 0.3])
    fedlap_targets.draw_ways(tmp_path / "ways.png", {"FedLap": way, "FedDyn": way}, 0.3, 0.4)
    assert (tmp_path / "ways.png").stat().st_size > 5000
