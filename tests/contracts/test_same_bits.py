"""The promise of the engine, for every method: the same bits on any number of ranks, and after any stop.

What could break it: the number of ranks (1 to 4), the kind of model, clients that are away, ranks without clients,
stops. Not every combination is run: every pair of them is, for every method. The worlds of the cases below make up

    model x ranks           mlp 1 2 3 4     conv 1 2 3 4
    clients taking part     all 1 2 3 4     some 1 2 3 4
    model x clients         mlp all, some   conv all, some

and a run that was stopped twice and moved from 3 to 2 to 4 ranks shows that each of its rounds is right on its ranks.
"""

from pathlib import Path

import pytest

from fedddp.config import loading as configuration
from fedddp.records.records import read_metrics
from fedddp.rounds import checkpoint
from tests.small import METHODS, fresh, run, settings

FEW = ["data.test_fraction=0.92", "federation.rounds=2"]
MLP = [*FEW, "model.name=mlp", "model.hidden=[12]"]
CONV = [*FEW, "model.name=cnn", "model.channels=[4]", "model.groups=2"]
SOME = "federation.participation=0.4"
CASES = {  # the settings, and the worlds to compare
    "mlp": (MLP, (1, 2, 4)),
    "conv": (CONV, (1, 3)),
    "fewer clients than ranks": ([*MLP, "split.clients=2", SOME], (1, 3)),
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CASES)
def test_same_bits_on_any_number_of_ranks(worlds, tmp_path, method, case):
    words, sizes = CASES[case]
    config = configuration.load(None, settings(method, *words))
    sums = {ranks: worlds(ranks).run(run, config, fresh(tmp_path, f"{ranks}"))[0]["checksum"] for ranks in sizes}
    assert len(set(sums.values())) == 1, sums


@pytest.mark.parametrize("method", METHODS)
def test_same_bits_after_stops_on_other_numbers_of_ranks(worlds, tmp_path, method):
    more = ["federation.rounds=3", SOME, "checkpoint.every=1", "local.keep=true"]
    config = configuration.load(None, settings(method, *CONV, *more))
    whole = worlds(1).run(run, config, fresh(tmp_path, "whole"))[0]
    folder = fresh(tmp_path, "parts")
    for done, (ranks, killed_in) in enumerate([(3, 2), (2, 3)]):  # the round that a kill meets is not checkpointed
        assert worlds(ranks).run(run, config, folder, done > 0, killed_in) == [None] * ranks
        assert checkpoint.newest(Path(folder) / "checkpoints", pytest.fail).name == f"round-{done + 1:06d}"
    resumed = worlds(4).run(run, config, folder, True)[0]
    assert resumed["checksum"] == whole["checksum"]
    for name in ("whole", "parts"):
        assert [r["round"] for r in read_metrics(Path(tmp_path) / name / "metrics.jsonl")] == [1, 2, 3]


def test_the_convolution_would_tell_another_grouping_of_clients(worlds, tmp_path):
    """Without this the cases above would prove little: rows of a matrix product have the same bits in any grouping."""
    found = set()
    for width in (1, 2, 3):
        config = configuration.load(None, settings("fedavg", *CONV, f"federation.cohort_width={width}"))
        found.add(worlds(1).run(run, config, fresh(tmp_path, str(width)))[0]["checksum"])
    assert len(found) == 3
