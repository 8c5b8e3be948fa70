"""The study of scale counts what was done: nobody is left out, nothing is done twice."""

import subprocess
import sys

import pytest
import torch

from fedddp.bench.scale import line, measure
from fedddp.config import loading as configuration
from fedddp.exchange.group import Exchange
from fedddp.rounds.plan import sample
from fedddp.runs.build import make_task

WORDS = ["split.clients=300", "federation.participation=0.1"]


def play(method: str) -> dict:
    return measure("strong", method, WORDS, 5, Exchange())


@pytest.mark.parametrize("method", ["fedavg", "scaffold"])
def test_work_and_clients_add_up_over_ranks(worlds, method):
    one, two = worlds(1).run(play, method)[0], worlds(2).run(play, method)[0]
    config = configuration.load("scale_100k", WORDS)
    task = make_task(config, torch.device("cpu"))
    steps = [sum(-(-int(task.num_examples[k]) // 10) for k in sample(0, r, 300, 0.1)) for r in range(5)]
    for row in (one, two):
        assert sum(row["steps"]) == pytest.approx(sum(steps) / 5)
        assert sum(row["hosted"]) == 300
        assert row["active"] == 30
        assert row["imbalance"] >= 1
    assert one["bytes"] == two["bytes"], "what a rank adds up does not grow with the ranks"
    assert "of 300 clients" in line(two)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_study_starts_its_ranks_once(ranks):
    """A rank alone, too, knows that it is one."""
    code = f"from fedddp.bench import scale; scale.RANKS = ({ranks},); from fedddp.cli import main; main()"
    words = ["bench", "scale", *WORDS, "--rounds", "5"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 4
    assert done.stdout.count(f"{ranks} ranks") == 4


def test_efficiency_is_measured_on_one_rank_and_on_two():
    code = "from fedddp.bench import workloads; workloads.COMMON[:] = []; from fedddp.cli import main; main()"  # digits
    words = ["bench", "ranks", "a_sgd", "split.clients=6", "model.hidden=[8]", "--rounds", "3", "--repeat", "1"]
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "1 -> 2 ranks  efficiency" in done.stdout
    assert "median: fedddp" in done.stdout
