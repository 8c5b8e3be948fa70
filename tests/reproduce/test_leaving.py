"""What is left of a client that left: how losses tell its examples, real runs of every kind of row, the table."""

import pytest
import torch

from fedddp.reproduce import leaving
from fedddp.reproduce.leaving import Row, told_apart
from tests.data import writers
from tests.reproduce.test_ranking import one_group

assert one_group  # a fixture


@pytest.mark.parametrize(
    ("inside", "outside", "share"),
    [
        ([0.1, 0.2], [0.3, 0.4, 0.5], 1.0),
        ([0.9], [0.1, 0.2], 0.0),
        ([0.2], [0.2, 0.2], 0.5),
        ([0.1, 0.3], [0.2, 0.3], (2 + 0.5) / 4),
    ],
)
def test_who_is_told_apart_by_smaller_losses(inside, outside, share):
    assert told_apart(torch.tensor(inside), torch.tensor(outside)) == share


def test_real_runs_fill_the_table_and_are_not_run_again(one_group, tmp_path, monkeypatch):
    writers.mnist(tmp_path / "fashion-mnist", 400, 40)
    monkeypatch.setenv("FEDDDP_DATA", str(tmp_path))
    monkeypatch.setattr(leaving, "SEEDS", (1,))
    monkeypatch.setattr(leaving, "MORE", (0, 1))
    few = ["federation.rounds=2", "data.fraction=1", "split.dealing=exact", "model.hidden=[8]", "local.batch_size=20"]
    monkeypatch.setattr(leaving, "COMMON", [word for word in leaving.COMMON if "rounds" not in word] + few)
    path = tmp_path / "leaving.json"
    found = list(leaving.run(path))
    kinds = ["with it", "forgotten, 0 more", "forgotten, 1 more", "never with it"]
    assert [(row.method, row.rounds) for row in found] == [(m, kind) for m in leaving.METHODS for kind in kinds]
    assert all(0 <= number <= 1 for row in found for number in (row.accuracy, row.own, row.membership))
    assert leaving.read(path) == found
    assert not list(leaving.run(path))
    page = leaving.filled("before\n<!-- leaving -->\nold\n<!-- end -->\nafter\n", found)
    assert "old" not in page
    assert page.count("| pvi |") == len(kinds)


def test_a_cell_is_mean_and_deviation_and_rounds_of_every_seed():
    rows = [
        Row("pvi", seed, "with it", accuracy, 0.5, 0.5, same) for seed, accuracy, same in ((1, 0.7, 9), (2, 0.9, 0))
    ]
    assert "| pvi | with it | 0.800 ± 0.141 | 0.500 ± 0.000 | 0.500 ± 0.000 | 9, not in 15 |" in leaving.markdown(rows)
