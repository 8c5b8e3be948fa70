"""Real ranks, really killed: the resumed run ends with the bits of the uninterrupted one."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests import forked
from tests.jobs.command import SLOW

WORDS = ["run", "method=feddyn", "federation.rounds=7", "federation.participation=0.7", "checkpoint.every=1"]
WORDS += ["data.test_fraction=0.5", f"model.name={SLOW}:Slow", "local.epochs=2", "local.momentum=0.9"]
WORDS += ["local.keep=true", "federation.cohort_width=3", "evaluation.histograms=0"]


def start(tmp_path: Path, *more: str, **how: int) -> forked.Forked:
    """So slowly that there is time to kill it; what it computes is the same."""
    (tmp_path / "pace").write_text("0.02")
    return forked.start(*WORDS, "--out", tmp_path / "run", *more, SLOW=str(tmp_path / "pace"), **how)


def finish(out: Path, ranks: int, *more: str) -> dict:
    run = forked.fedddp(*WORDS, "--out", out, "--ranks", 1, *more, ranks=ranks)
    assert run.returncode == 0, run.stderr
    return json.loads((out / "summary.json").read_text())


def wait_for_round(out: Path, number: int) -> None:
    path, deadline = out / "metrics.jsonl", time.time() + 120
    while not path.exists() or path.read_text().count("\n") < number:
        assert time.time() < deadline, f"round {number} was not reached"
        time.sleep(0.01)


def ranks_of(launcher: int) -> list[int]:
    """The worker processes of a launcher."""
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    workers = [int(pid) for pid in children if "fedddp" in Path(f"/proc/{pid}/cmdline").read_text()]
    assert workers
    return workers


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict:
    return finish(tmp_path_factory.mktemp("whole") / "run", 1)


def goes_on(out: Path, ranks: int, whole: dict, *more: str) -> None:
    """The resumed run has the bits of the whole one, and every round stands in its records once."""
    assert not (out / "summary.json").exists()
    assert finish(out, ranks, "--resume", *more)["checksum"] == whole["checksum"]
    rounds = [json.loads(line)["round"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert rounds == list(range(1, 8))
    board = EventAccumulator(str(out), size_guidance={"scalars": 0}).Reload()
    assert [event.step for event in board.Scalars("1_quality/accuracy")] == list(range(1, 8))


def test_a_killed_rank_ends_the_job_which_goes_on_with_three(tmp_path, whole):
    run = start(tmp_path, "--ranks", "2")
    wait_for_round(tmp_path / "run", 2)
    os.kill(ranks_of(run.ranks[0].pid)[-1], signal.SIGKILL)
    assert run.wait().returncode == 1, "a dead rank must end the job, not hang it"
    assert "was ended by SIGKILL" in run.stderr
    goes_on(tmp_path / "run", 3, whole)


def test_a_job_that_is_killed_whole_goes_on_with_one(tmp_path, whole):
    run = start(tmp_path, ranks=2)
    wait_for_round(tmp_path / "run", 4)
    for rank in run.ranks:
        rank.kill()
    assert run.wait().returncode == -signal.SIGKILL
    goes_on(tmp_path / "run", 1, whole)


def test_ctrl_c_ends_in_a_resumable_state(tmp_path, whole):
    rarely = "checkpoint.every=1000"
    run = start(tmp_path, "--ranks", "2", rarely)
    wait_for_round(tmp_path / "run", 2)
    os.kill(run.ranks[0].pid, signal.SIGINT)
    assert run.wait().returncode not in (0, None)
    assert "go on with --resume" in run.stderr
    assert "Traceback" not in run.stderr
    goes_on(tmp_path / "run", 2, whole, rarely)
