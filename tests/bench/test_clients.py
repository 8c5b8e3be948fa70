"""What judging every client costs: both evaluations are of the same models, and the share is of an evaluated round."""

import json

import pytest

from fedddp.bench import clients
from tests.forked import fedddp

SMALL = ["data.name=digits", "split.clients=7", "split.dealing=exact", "model.hidden=[12]", "local.batch_size=16"]


def test_a_row_for_a_case(tmp_path):
    done = fedddp("bench", "clients", "case=fedavg", *SMALL, "--rounds", 2, "--out", tmp_path / "cost.json")
    assert done.returncode == 0, done.stderr
    (row,) = json.loads((tmp_path / "cost.json").read_text())
    assert (row["case"], row["clients"]) == ("fedavg", 7)
    assert min(row["round"], row["without"]) > 0
    assert row["share"] == pytest.approx(row["parts"] / (row["round"] + row["without"]))
    assert "7 parts" in done.stdout


def test_the_share_is_of_a_round_and_its_evaluation():
    cost = clients.Cost("fedavg", 100, 1.5, 0.5, 0.02)
    assert cost.share == 0.01
    assert clients.line(cost).endswith("100 parts +0.0200 s, 1.00% of an evaluated round")
