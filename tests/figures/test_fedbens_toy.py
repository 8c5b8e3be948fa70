"""FedBEns' Fig. 1: the broad minimum matters for both clients, and an ensemble finds it without being told."""

import pytest
import torch
from torch.func import grad

from fedddp.figures import fedbens_toy


@pytest.fixture(scope="module")
def found():
    return fedbens_toy.study()


def far(found, point):
    return float((point - found.truth).norm())


def test_the_deep_minimum_leads_astray_and_the_ensemble_does_not(found):
    assert far(found, found.deep) > 2
    assert far(found, found.broad) < 0.1
    assert far(found, found.ensemble) < 0.1


def test_the_truth_has_no_slope_and_both_minima_were_found(found):
    assert float(grad(fedbens_toy._both)(found.truth).norm()) < 1e-9
    ends = found.ways[0][-1]
    for minimum in (fedbens_toy.DEEP, fedbens_toy.BROAD):
        assert bool(((ends - torch.tensor(minimum)).norm(dim=1) < 0.2).any())
    assert fedbens_toy.first(torch.tensor(fedbens_toy.DEEP)) < fedbens_toy.first(torch.tensor(fedbens_toy.BROAD))


def test_it_is_drawn(found, tmp_path, monkeypatch):
    monkeypatch.setattr(fedbens_toy, "study", lambda seed: found)
    fedbens_toy.draw(tmp_path / "toy.png")
    assert (tmp_path / "toy.png").stat().st_size > 10_000
