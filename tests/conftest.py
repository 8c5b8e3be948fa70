"""Shared fixtures: ranks, one process group for tests in this process, and real data where there is some."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from fedddp.exchange.group import Exchange
from tests.world import Ranks


def pytest_configure() -> None:
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)


LONG = ("slurm", "contracts", "checks", "test_cli.py", "test_api.py", "runs")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What takes long comes first: whoever gets it last would keep the others waiting. Slurm's tests mostly wait."""
    folder = Path(__file__).parent
    places = {item: item.path.relative_to(folder).parts[0] for item in items}
    items.sort(key=lambda item: LONG.index(places[item]) if places[item] in LONG else len(LONG))


@pytest.fixture(scope="session")
def worlds() -> Iterator[Ranks]:
    """Worlds of one to four ranks, by size."""
    ranks = Ranks()
    yield ranks
    ranks.close()


@pytest.fixture(scope="session")
def exchange() -> Iterator[Exchange]:
    """A world of one, in this process."""
    one = Exchange.connect(torch.device("cpu"))
    yield one
    one.close()


@pytest.fixture
def data_root() -> Path:
    """The folder of real data files; tests that ask for it carry the marker `data`."""
    if not os.environ.get("FEDDDP_DATA"):
        pytest.skip("FEDDDP_DATA is not set: no real data files here")
    return Path(os.environ["FEDDDP_DATA"])


@pytest.fixture(autouse=True)
def cuda_only_where_there_is_one(request: pytest.FixtureRequest) -> None:
    if request.node.get_closest_marker("cuda") and not torch.cuda.is_available():
        pytest.skip("no GPU on this machine")
