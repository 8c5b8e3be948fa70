"""Real ranks, really killed: the resumed run ends with the bits of the uninterrupted one."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

WORDS = ["run", "method=feddyn", "federation.rounds=7", "federation.participation=0.7", "checkpoint.every=1"]
WORDS += [
    "data.test_fraction=0.5",
    "local.epochs=2",
    "local.momentum=0.9",
    "local.keep=true",
    "federation.cohort_width=3",
]


def start(out: Path, *more: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedddp", *WORDS, "--out", str(out), *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)


def finish(out: Path, *more: str) -> dict:
    run = start(out, *more)
    _, errors = run.communicate(timeout=180)
    assert run.returncode == 0, errors
    return json.loads((out / "summary.json").read_text())


def wait_for_round(out: Path, number: int, run: subprocess.Popen[str]) -> None:
    deadline = time.time() + 120
    while time.time() < deadline and run.poll() is None:
        path = out / "metrics.jsonl"
        if path.exists() and path.read_text().count("\n") >= number:
            return
        time.sleep(0.01)
    raise AssertionError(f"round {number} was not reached: {run.communicate()}")


def ranks_of(run: subprocess.Popen[str]) -> list[int]:
    """The worker processes of a launcher."""
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    workers = [int(pid) for pid in children if "fedddp" in Path(f"/proc/{pid}/cmdline").read_text()]
    assert workers
    return workers


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict:
    return finish(tmp_path_factory.mktemp("whole") / "run", "--ranks", "1")


@pytest.mark.parametrize(("victims", "at", "ranks_after"), [("one rank", 2, "3"), ("all", 4, "1")])
def test_killed_and_resumed_on_another_number_of_ranks(tmp_path, whole, victims, at, ranks_after):
    out = tmp_path / "run"
    run = start(out, "--ranks", "2")
    wait_for_round(out, at, run)
    if victims == "one rank":
        began = time.time()
        os.kill(ranks_of(run)[-1], signal.SIGKILL)
        _, errors = run.communicate(timeout=60)
        assert time.time() - began < 45, "a dead rank must end the job, not hang it"
        assert run.returncode != 0
        assert "was ended by SIGKILL" in errors
    else:
        for pid in [*ranks_of(run), run.pid]:
            os.kill(pid, signal.SIGKILL)
        run.wait(timeout=30)
    assert not (out / "summary.json").exists()
    resumed = finish(out, "--ranks", ranks_after, "--resume")
    assert resumed["checksum"] == whole["checksum"]
    rounds = [json.loads(line)["round"] for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert rounds == list(range(1, 8))
    board = EventAccumulator(str(out), size_guidance={"scalars": 0}).Reload()
    assert [event.step for event in board.Scalars("accuracy")] == list(range(1, 8))


def test_ctrl_c_ends_in_a_resumable_state(tmp_path, whole):
    out = tmp_path / "run"
    run = start(out, "--ranks", "2", "checkpoint.every=1000")
    wait_for_round(out, 2, run)
    os.killpg(run.pid, signal.SIGINT)
    _, errors = run.communicate(timeout=60)
    assert run.returncode not in (0, None)
    assert "go on with --resume" in errors
    assert "Traceback" not in errors
    assert finish(out, "--ranks", "2", "--resume", "checkpoint.every=1000")["checksum"] == whole["checksum"]
