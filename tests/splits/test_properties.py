"""What every split promises, for any data and any number of clients."""

import time

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedddp.core import registry
from fedddp.core.data import Examples
from fedddp.core.rng import stream
from fedddp.core.shards import Shards

ALL = [name for name in registry.names("split") if name != "file"]  # a file says itself who holds what
WHOLE = ["iid", "dirichlet", "class_dirichlet", "client_dirichlet", "balanced_dirichlet", "shards", "lognormal"]
ALPHAS = st.floats(-6, 15).map(lambda exponent: 10**exponent)
QUICK = settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])


def some(targets: list[int] | Tensor, clients: int = 4) -> Examples:
    targets = torch.as_tensor(targets, dtype=torch.long)
    return Examples(torch.zeros(len(targets), 1), targets, torch.arange(len(targets)) % clients)


def split(name: str, clients: int = 10, alpha: float = 0.5, minimum: int = 1):
    cls = registry.find("split", name)
    wanted = {"clients": clients, "alpha": alpha, "size_alpha": alpha, "minimum": minimum}
    return cls(**{key: value for key, value in wanted.items() if key in cls.__dataclass_fields__})


def deal(splitter, examples: Examples, seed: int = 0) -> list[Tensor]:
    return splitter.deal(examples, stream(seed, "split"))


@pytest.mark.parametrize("name", WHOLE)
@QUICK
@given(
    targets=st.lists(st.integers(0, 11), max_size=300),
    clients=st.integers(1, 60),
    alpha=ALPHAS,
    minimum=st.integers(0, 8),
    seed=st.integers(0, 5),
)
def test_every_point_once_and_none_too_small(name, targets, clients, alpha, minimum, seed):
    parts = deal(split(name, clients, alpha, minimum), some(targets), seed)
    sizes = [len(part) for part in parts]
    assert len(parts) == clients
    assert sum(sizes) == len(targets)
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(targets)))
    if minimum * clients <= len(targets):
        assert min(sizes) >= minimum


@pytest.mark.parametrize("name", WHOLE)
@settings(max_examples=6, deadline=None, derandomize=True)
@example(clients=10_000, alpha=1e-6, minimum=1)
@example(clients=10_000, alpha=0.5, minimum=1)
@given(clients=st.integers(1, 10_000), alpha=ALPHAS, minimum=st.integers(0, 1))
def test_any_number_of_clients_up_to_ten_thousand(name, clients, alpha, minimum):
    targets = torch.arange(12_000) % 10
    parts = deal(split(name, clients, alpha, minimum), some(targets))
    assert len(parts) == clients
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(len(targets)))
    assert min(len(part) for part in parts) >= minimum


@pytest.mark.parametrize("name", ALL)
def test_the_generator_alone_decides(name):
    examples = some(torch.arange(400) % 2)
    splitter = split(name, clients=7)
    torch.manual_seed(1)
    first = deal(splitter, examples, seed=3)
    torch.manual_seed(2)
    again, other = deal(splitter, examples, seed=3), deal(splitter, examples, seed=4)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    if name not in ("natural", "fedbens"):  # nothing random without options, and one published split
        assert Shards.of(first).digest() != Shards.of(other).digest()


@pytest.mark.parametrize("name", ALL)
def test_more_clients_than_points_is_said(name):
    if name in ("natural", "credit", "classes", "resample"):
        pytest.skip("has as many clients as the data or its own settings say")
    with pytest.raises(ValueError, match=r"fewer than 1: use fewer clients \(split.clients\)"):
        Shards.of(deal(split(name, clients=9), some([0, 1, 1])))


@pytest.mark.parametrize("name", ["dirichlet", "class_dirichlet", "shards", "classes", "credit", "resample"])
def test_no_class_for_each_example_is_said(name):
    several = Examples(torch.zeros(6, 1), torch.ones(6, 3, dtype=torch.long))
    with pytest.raises(ValueError, match="deals class by class"):
        deal(split(name), several)


@pytest.mark.parametrize("name", [*WHOLE, "classes", "resample"])
def test_sixty_thousand_points_over_a_thousand_clients_in_under_a_second(name):
    examples = some(torch.arange(60_000) % 10)
    start = time.process_time()  # others may use the machine too
    shards = Shards.of(deal(split(name, clients=1000), examples))
    assert time.process_time() - start < 1.0
    assert shards.num_clients == 1000


@pytest.mark.parametrize(
    ("name", "setting"),
    [("iid", {"clients": 0}), ("dirichlet", {"alpha": 0.0}), ("shards", {"shards": 0}), ("lognormal", {"sigma": -1.0})],
)
def test_settings_out_of_range_name_the_key(name, setting):
    with pytest.raises(ValueError, match=f"split.{next(iter(setting))}="):
        registry.find("split", name)(**setting)
