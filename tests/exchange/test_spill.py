"""Sums that wait wherever: the same totals, and in a file they take no memory."""

import ctypes
from pathlib import Path

import pytest
import torch

from fedddp.core.rng import stream
from fedddp.exchange.messages import Mean, Sum
from fedddp.exchange.reduce import Reduction
from fedddp.exchange.spill import Filed, Spill
from fedddp.rounds.store import PLACES
from tests.small import MODELS, fresh, run, settings

CPU = torch.device("cpu")


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def reduction(place, cohorts, size, dtype=torch.float32):
    kept = Reduction(cohorts, spill=Spill(place))
    for number in range(cohorts):
        value = torch.randn(1, size, generator=stream("spill", number), dtype=dtype)
        kept.add({"mean": Mean(value, weight=number + 1.0), "sum": Sum(value[:, :10])}, torch.tensor([number]))
    return kept


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_totals_do_not_depend_on_where_sums_wait(exchange, place, dtype):
    plain, other = (reduction(where, 3, 300_000, dtype) for where in ("device", place))
    assert isinstance(other.sums[0][0], Filed) == (place == "file")
    for got, wanted in zip(*(k.total(exchange, k.exponents(), 3, CPU).values() for k in (plain, other)), strict=True):
        assert torch.equal(got, wanted)


def test_a_rank_does_not_grow_with_its_cohorts(exchange):
    if not hasattr(libc := ctypes.CDLL(None), "mallopt"):
        pytest.skip("counts pages as glibc returns them")
    libc.mallopt(-3, 1 << 16)  # freed tensors go back to the kernel at once, so that pages in use can be counted
    few = reduction("file", 2, 1 << 20)
    few.total(exchange, few.exponents(), 2, CPU)
    before = resident()
    many = reduction("file", 30, 1 << 20)  # 120 MB
    many.total(exchange, many.exponents(), 30, CPU)
    assert resident() - before < 20e6


def test_a_run_has_the_same_bits_with_its_sums_in_a_file(exchange, tmp_path, monkeypatch):
    monkeypatch.setattr("fedddp.exchange.spill.SMALL", 1)
    words = settings("fedavg", *MODELS["mlp"])
    plain, filed = (run([*words, f"federation.rows={p}"], fresh(tmp_path, p)) for p in ("device", "file"))
    assert plain["checksum"] == filed["checksum"]
