"""Client rows wherever they are kept: the same numbers, few pages in memory, nothing left behind."""

import re
import tempfile
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from fedddp.config import loading as configuration
from fedddp.exchange.group import Exchange
from fedddp.rounds.solver import Nothing
from fedddp.rounds.store import PLACES, ClientStore
from fedddp.runs.job import Job
from tests.small import MODELS, fresh, run, settings


class Clients(NamedTuple):
    dual: Tensor
    count: Tensor


def start(count: int) -> Clients:
    return Clients(torch.zeros(count, 1000), torch.full((count,), 7))


@pytest.mark.parametrize("place", PLACES)
def test_rows_are_what_was_written(place):
    ids = torch.tensor([2, 5, 7, 11])
    store = ClientStore.make(ids, start, place)
    assert store.memory.count.tolist() == [7] * 4
    some = torch.tensor([5, 11])
    store.write(some, Clients(torch.ones(2, 1000), torch.tensor([1, 2])))
    store.write(some, Clients(torch.full((2, 1000), 3.0), torch.tensor([3, 4])), good=torch.tensor([False, True]))
    assert store.read(ids).dual[:, 0].tolist() == [0.0, 1.0, 0.0, 3.0]
    assert store.read(ids).count.tolist() == [7, 1, 7, 4]
    other = ClientStore.make(torch.tensor([5, 7]), start, place)
    assert other.fill(store.tensors()) == 2
    assert other.read(torch.tensor([5, 7])).count.tolist() == [1, 7]


@pytest.mark.parametrize("place", PLACES)
def test_a_rank_without_clients_and_a_method_without_memory(place):
    nobody = ClientStore.make(torch.zeros(0, dtype=torch.long), start, place)
    assert nobody.memory.dual.shape == (0, 1000)
    assert nobody.fill(ClientStore(torch.tensor([1]), start(1)).tensors()) == 0
    assert ClientStore.make(torch.arange(3), lambda _: Nothing(), place).empty


def resident(address: int) -> int:
    """kB of the mapping at an address that are in this process's memory."""
    for part in re.split(r"(?m)^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text())[1:]:
        first, last = (int(end, 16) for end in part.split(" ", 1)[0].split("-"))
        if first <= address < last:
            return int(re.search(r"(?m)^Rss:\s+(\d+)", part).group(1))
    raise AssertionError("not mapped")


def test_a_mapped_file_holds_no_memory_between_cohorts_and_has_no_name(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    store = ClientStore.make(torch.arange(500), start, "file")
    assert not list(tmp_path.iterdir())
    address = store.memory.dual.data_ptr()
    assert resident(address) == 0, "zeros need no page"
    store.memory.dual.sum()
    assert resident(address) >= 1900
    store.write(torch.arange(3), Clients(torch.ones(3, 1000), torch.ones(3, dtype=torch.long)))
    assert resident(address) == 0
    assert store.memory.dual.sum() == 3000


def test_no_room_is_said_at_the_start():
    with pytest.raises(ValueError, match=r"federation.rows=file: no room for .* name another folder with TMPDIR"):
        ClientStore(torch.zeros(0), None)._mapped(torch.zeros(1, 1000), 2**50)


@pytest.mark.parametrize("method", ["local", "scaffold"])
def test_the_same_bits_and_any_resume_wherever_rows_are(worlds, tmp_path, method):
    words = settings(method, *MODELS["mlp"], "federation.participation=0.6", "checkpoint.every=1", "local.epochs=2")
    sums = {}
    for ranks, place in enumerate(PLACES, 1):
        folder = fresh(tmp_path, place)
        sums[place] = worlds(min(ranks, 2)).run(run, [*words, f"federation.rows={place}"], folder)[0]["checksum"]
    folder = fresh(tmp_path, "parts")
    worlds(2).run(run, [*words, "federation.rows=host"], folder, False, 2)
    worlds(1).run(run, [*words, "federation.rows=file"], folder, True, 3)
    sums["resumed"] = worlds(2).run(run, [*words, "federation.rows=device"], folder, True)[0]["checksum"]
    assert len(set(sums.values())) == 1, sums


@pytest.mark.cuda
@pytest.mark.parametrize("place", ["host", "file"])
def test_rows_beside_a_gpu(exchange, tmp_path, place):
    sums = set()
    for where in ("device", place):
        config = configuration.load(None, settings("scaffold", *MODELS["mlp"], f"federation.rows={where}"))
        job = Job(
            config, Path(fresh(tmp_path, where)), Exchange(torch.device("cuda", 0)), torch.device("cuda", 0), True
        )
        sums.add(job.run(resume=False)["checksum"])
    assert len(sums) == 1
