"""The ranking: what is chosen by whom, what is left to run, real runs of two methods, and the page."""

import json
from dataclasses import replace
from itertools import product

import pytest
import torch

from fedddp.config import loading as configuration
from fedddp.core import registry
from fedddp.exchange.group import Exchange
from fedddp.reproduce import ranking, ranking_page
from fedddp.reproduce.ranking import Entry
from tests.data.test_tables import hospitals
from tests.docs.blocks import TREE

NUMBERS = {"accuracy": 0.5, "nll": 1.0, "ece": 0.1, "megabytes": 2.0, "seconds": 3.0}


def entry(method, factor, seed=1, task="ranking_heart", validation=0.5, held_nll=1.0, **more):
    held = {"validation_accuracy": validation, "validation_nll": held_nll}
    return Entry(task, method, seed, factor, {**NUMBERS, **held, **more})


def test_the_validation_points_choose_and_the_test_set_has_no_say():
    entries = [
        entry("a", 1.0, validation=0.6, accuracy=0.9),
        entry("a", 0.3, validation=0.7, accuracy=0.2, held_nll=2.0),
        entry("a", 3.0, validation=0.7, accuracy=0.1, held_nll=1.5),
        entry("a", 1.0, seed=2, validation=0.9),
    ]
    assert ranking.chosen(entries) == 3.0
    assert ranking.chosen([Entry("t", "a", 1, 1.0, reason="no")]) is None


def test_what_is_left_to_run():
    task = "ranking_heart"
    left = lambda entries, seed: list(ranking._missing(entries, task, "a", seed))  # noqa: E731
    assert left([], 1) == list(ranking.FACTORS)
    assert left([entry("a", 1.0)], 1) == [0.3, 3.0]
    assert left([Entry(task, "a", 1, 1.0, reason="cannot: x")], 1) == []
    assert left([Entry(task, "a", 1, 1.0, reason="takes more than 90 s")], 1) == []
    assert left([Entry(task, "a", 1, 1.0, reason="round 3: diverged")], 1) == [0.3, 3.0]
    tried = [entry("a", factor, validation=factor) for factor in ranking.FACTORS]
    assert left(tried, 2) == [3.0]
    assert left([*tried, entry("a", 3.0, seed=2)], 2) == []


def test_usual_learning_rates():
    assert ranking.words("ranking_heart", "fedavg", 2, 0.3) == ["method=fedavg", "seed=2", "local.lr=0.03"]
    assert ranking.words("ranking_heart", "fedbens", 1, 1.0)[-1] == "local.lr=0.01"
    assert ranking.words("ranking_shakespeare", "fedavg", 1, 1.0)[-1] == "local.lr=1"


def test_real_runs_are_kept_and_not_run_again(tmp_path, monkeypatch):
    hospitals(tmp_path / "heart")
    monkeypatch.setenv("FEDDDP_DATA", str(tmp_path))
    monkeypatch.setattr(ranking, "TASKS", ("ranking_heart",))
    monkeypatch.setattr(ranking, "words", lambda *a: [*WORDS(*a), "data.validation=10", "federation.rounds=2"])
    path, methods = tmp_path / "ranking.json", ["dense", "fedavg", "pvi"]
    found = list(ranking.run(tmp_path / "runs", path, (1, 2), ranking.methods(methods)))
    assert ranking.read(path) == found
    tuned = [("fedavg", 1), ("pvi", 1)] * 3
    assert [(e.method, e.seed) for e in found] == [("dense", 1), *tuned, ("fedavg", 2), ("pvi", 2)]
    assert found[0].reason.startswith("cannot: method.name=dense")
    assert all({*NUMBERS, "validation_accuracy", "own_part", "worst_tenth"} <= set(e.metrics) for e in found[1:])
    folder = tmp_path / f"runs/ranking_heart/pvi-1-{found[2].factor:g}"
    last = json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])
    assert "averaged_nll" in last
    assert all(e.date for e in found)
    assert not list(ranking.run(tmp_path / "runs", path, (1, 2), ranking.methods(methods)))
    page = ranking_page.page(found)
    assert "| `fedavg` |" in page
    assert "Heart, `dense`: method.name=dense: makes up inputs" in page


WORDS = ranking.words


def test_a_run_that_takes_too_long_is_cut_off_within_its_round(tmp_path, monkeypatch):
    hospitals(tmp_path / "heart")
    monkeypatch.setenv("FEDDDP_DATA", str(tmp_path))
    monkeypatch.setattr(ranking, "TASKS", ("ranking_heart",))
    monkeypatch.setattr(ranking, "words", lambda *a: [*WORDS(*a), "data.validation=10", "local.epochs=1000000"])
    table = replace(ranking.methods(["fedavg"]), factors=(1.0,), most=1.0)
    (found,) = ranking.run(tmp_path / "runs", tmp_path / "ranking.json", (1,), table)
    assert (found.reason, found.metrics) == ("takes more than 1 s: 0 of 20 rounds were done by then", {})


def test_the_page_orders_by_accuracy_and_places_by_the_mean_over_data_sets():
    entries = [
        entry("a", 1.0, accuracy=0.8, nll=0.3),
        entry("a", 1.0, seed=2, accuracy=0.9, nll=0.3),
        entry("b", 1.0, accuracy=0.9, nll=0.4),
        entry("a", 1.0, task="ranking_fashion", nll=0.9),
        entry("b", 1.0, task="ranking_fashion", nll=0.1),
        entry("c", 1.0, nll=0.1),
    ]
    page = ranking_page.page(entries)
    heart = page[page.index("## Heart") : page.index("## Fashion")]
    assert heart.index("`b`") < heart.index("`a`") < heart.index("`c`")
    assert "| `a` | 85.0 ± 7.1 | 0.300 ± 0.000 |" in heart
    overall = page[page.index("## All three") : page.index("## Heart")]
    assert "| `b` | 1.0 | 2.0 |" in overall  # accuracy 1, 1; NLL 3, 1
    assert "| `c` |" in overall


def test_the_committed_page_is_what_the_file_says_and_nobody_is_missing():
    entries = ranking.read(ranking.file())
    assert (TREE / "docs" / "ranking.md").read_text() == ranking_page.page(entries)
    for task, method in product(ranking.TASKS, registry.builtin("method")):
        own = [e for e in entries if (e.task, e.method) == (task, method)]
        best = ranking.chosen(own)
        seeds = {e.seed for e in own if e.factor == best}
        assert seeds == set(ranking.SEEDS) or (best is None and any(e.reason for e in own)), (task, method)
        assert all(e.date for e in own), (task, method)


def test_the_page_says_what_was_run_and_when(monkeypatch):
    """From the experiments' files, so that neither can go on without the other."""
    page = ranking_page.page([replace(entry("a", 1.0), date="2026-01-02")])
    assert "`fedddp ranking --docs docs/ranking.md`, on 2026-01-02;" in page
    for task in ranking.TASKS:
        config = configuration.load(task, [])
        line = f"{config['federation.rounds']} rounds of {config['local.epochs']} epochs in batches of"
        (said,) = [part for part in page.split("\n- ") if f"(`{task}`)" in part]
        assert f"{line} {config['local.batch_size']}." in " ".join(said.split())
        assert f"model `name={config.title('model')}" in " ".join(said.split())
    assert all(len(line) <= 120 for line in page.splitlines() if not line.startswith("|"))


@pytest.fixture(autouse=True)
def one_group(exchange, monkeypatch):
    """The process has its group already, which another test may need again."""
    monkeypatch.setattr(Exchange, "connect", classmethod(lambda cls, device: Exchange()))
    monkeypatch.setattr(Exchange, "close", lambda self: None)
    assert torch.distributed.is_initialized()
