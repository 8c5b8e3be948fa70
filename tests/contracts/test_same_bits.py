"""The promise of the engine, for every method: the same bits on any number of ranks, and after any stop."""

from pathlib import Path

import pytest

from fedddp.records import read_metrics
from tests.small import METHODS, MODELS, fresh, run, settings


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("participation", [1.0, 0.3])
@pytest.mark.parametrize("method", METHODS)
def test_same_bits_on_any_number_of_ranks(worlds, tmp_path, method, participation, model):
    words = settings(method, *MODELS[model], f"federation.participation={participation}", "federation.rounds=2")
    sums = {}
    for ranks in (1, 2, 3, 4):
        summary = worlds(ranks).run(run, words, fresh(tmp_path, f"{ranks}"))[0]
        sums[ranks] = summary["checksum"]
    assert len(set(sums.values())) == 1, sums


@pytest.mark.parametrize("method", METHODS)
def test_more_ranks_than_clients(worlds, tmp_path, method):
    words = settings(method, *MODELS["mlp"], "split.clients=2", "federation.rounds=2")
    one = worlds(1).run(run, words, fresh(tmp_path, "1"))[0]
    four = worlds(4).run(run, words, fresh(tmp_path, "4"))[0]
    assert one["checksum"] == four["checksum"]


@pytest.mark.parametrize("method", METHODS)
def test_same_bits_after_a_stop_on_another_number_of_ranks(worlds, tmp_path, method):
    words = settings(method, *MODELS["conv"], "federation.participation=0.6", "checkpoint.every=1", "local.keep=true")
    whole = worlds(1).run(run, words, fresh(tmp_path, "whole"))[0]
    folder = fresh(tmp_path, "parts")
    worlds(3).run(run, words, folder, False, 1)
    worlds(2).run(run, words, folder, True, 2)  # killed before round 2 was checkpointed: goes on from round 1
    resumed = worlds(2).run(run, words, folder, True)[0]
    assert resumed["checksum"] == whole["checksum"]
    for name in ("whole", "parts"):
        assert [r["round"] for r in read_metrics(Path(tmp_path) / name / "metrics.jsonl")] == [1, 2, 3]
