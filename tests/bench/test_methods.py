"""What a round costs each method: counted bytes are exact, and times are ratios of rounds in turn."""

from dataclasses import replace

import torch

from fedddp.bench import methods
from fedddp.exchange.group import Exchange
from tests.forked import fedddp

SMALL = ["data.name=digits", "data.validation=0", "model.hidden=[12]", "split.clients=4", "local.batch_size=16"]


def test_each_method_has_a_row(tmp_path):
    words = ["case=fedavg", "case=scaffold", *SMALL]
    done = fedddp("bench", "methods", *words, "--repeat", 1, "--out", tmp_path / "costs.json")
    assert done.returncode == 0, done.stderr
    found = methods.read(tmp_path / "costs.json")
    assert set(found) == {"fedavg", "scaffold"}
    parameters = 4 * (64 * 12 + 12 + 12 * 10 + 10)
    assert (found["fedavg"].down, found["fedavg"].kept) == (parameters, 0)
    assert (found["scaffold"].down, found["scaffold"].kept) == (2 * parameters, parameters)
    assert all(0.1 < cost.ratio < 20 for cost in found.values())


def test_what_takes_too_long_says_so(monkeypatch):
    monkeypatch.setattr(methods, "MOST", 0.002)
    fedavg = methods.Turn(["method=fedavg", *SMALL], Exchange.connect(torch.device("cpu")))
    cost = methods.measure("scaffold", SMALL, 1, fedavg)
    assert cost == methods.Cost("scaffold", reason="takes more than 0 s")
    assert methods.line(cost).split(maxsplit=1) == ["scaffold", "takes more than 0 s"]
    assert "1.24x" in methods.line(replace(cost, ratio=1.24, reason=""))


def test_a_method_of_one_round_begins_anew():
    turn = methods.Turn(["method=ot_fusion", "local.epochs=1", *SMALL], Exchange.connect(torch.device("cpu")))
    first, server = turn.round(), turn.server
    assert first > 0
    turn.round()
    assert turn.number == 1
    assert torch.equal(turn.server.theta, server.theta), "the same round again"
