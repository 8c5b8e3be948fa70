"""A rank that is stopped or stuck is named within the time-out, by one that can speak; nothing is left behind."""

import json
import os
import re
import signal
import time
from pathlib import Path

import pytest

from tests import forked
from tests.soak.restarts import alive, children

TIMEOUT = 3
SPARE = 20.0  # seconds beyond it, on a busy machine; without the time-out it would be 600
HALTS = f"model.name={Path(__file__).with_name('halts.py')}:Halts"
WORDS = ["run", "method=feddyn", "federation.rounds=12", "checkpoint.every=1", "data.test_fraction=0.5"]
WORDS += ["evaluation.histograms=0", HALTS, f"federation.timeout={TIMEOUT}"]


def start(out: Path, *words: object, **env: str) -> forked.Forked:
    return forked.start(*WORDS, "--out", out, *words, **env)


def await_(true, seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def rounds(out: Path) -> int:
    path = out / "metrics.jsonl"
    return path.read_text().count("\n") if path.exists() else 0


def finish(out: Path, *words: object) -> str:
    run = start(out, *words).wait()
    assert run.returncode == 0, run.stderr
    return json.loads((out / "summary.json").read_text())["checksum"]


def end(run: forked.Forked) -> str:
    """The line that it says, when it has ended in time."""
    since = time.monotonic()
    err = run.wait().stderr
    assert time.monotonic() - since < TIMEOUT + SPARE, err
    assert run.returncode == 1, err
    (line,) = re.findall(r"^fedddp: .*", err, re.M)
    return line


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    return finish(tmp_path_factory.mktemp("whole") / "run", "--ranks", 1)


def at_work(tmp_path: Path, ranks: int = 2) -> tuple[forked.Forked, list[int]]:
    """A run in the middle of its rounds, and its ranks in order."""
    run = start(tmp_path / "run", "--ranks", ranks, STUCK=f"1 {tmp_path / 'stuck'}")
    await_(lambda: rounds(tmp_path / "run") >= 2)
    found = sorted(children(run.ranks[0].pid))  # forked in this order
    assert len(found) == ranks
    return run, found


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_stopped_is_named_and_ended(tmp_path, whole, rank):
    run, ranks = at_work(tmp_path)
    os.kill(ranks[rank], signal.SIGSTOP)
    line = end(run)
    assert line.startswith(f"fedddp: rank {rank} has not answered for {TIMEOUT} s (federation.timeout): its process is")
    assert not any(map(alive, ranks))
    assert finish(tmp_path / "run", "--resume", "--ranks", 1) == whole


@pytest.mark.parametrize("lost", [[0], [2], [0, 2]])
def test_one_of_three_ranks_says_who_is_stopped(tmp_path, lost):
    run, ranks = at_work(tmp_path, ranks=3)
    for rank in lost:
        os.kill(ranks[rank], signal.SIGSTOP)
    who = "rank {} has" if len(lost) == 1 else "ranks {}, {} have"
    assert who.format(*lost) + f" not answered for {TIMEOUT} s" in end(run)
    assert not any(map(alive, ranks))


def test_a_rank_that_is_stuck_in_its_own_work_is_named(tmp_path):
    run, ranks = at_work(tmp_path)
    (tmp_path / "stuck").touch()
    line = end(run)
    assert line.startswith(f"fedddp: rank 1 has not answered for {TIMEOUT} s (federation.timeout): it is at work")
    assert not any(map(alive, ranks))


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_is_stopped_before_they_have_met_is_named_and_ended(tmp_path, whole, rank):
    run = start(tmp_path / "run", "--ranks", 2, STOPS=f"{rank} {tmp_path}")
    await_(lambda: len(list(tmp_path.glob("rank-*"))) == 2)
    line = end(run)
    assert line.startswith(
        f"fedddp: rank {rank} has not answered for {TIMEOUT} s (federation.timeout): it did not come"
    )
    assert not any(alive(int(path.read_text())) for path in tmp_path.glob("rank-*"))
    assert finish(tmp_path / "run", "--resume", "--ranks", 1) == whole
