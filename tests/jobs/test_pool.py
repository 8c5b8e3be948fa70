"""Sweeps on this machine, with real processes: what is killed goes on, what fails says why, nothing runs twice."""

import os
import signal
import threading
from pathlib import Path

import pytest

from fedddp.cli import main
from fedddp.jobs import states
from fedddp.jobs.sweep import _verdict as verdict
from fedddp.runs import lock
from tests import forked
from tests.jobs.command import SMALL, await_, checksums, finished, rounds, runs, start

FEW = ["digits", *SMALL, "federation.rounds=4"]
GRID = ["digits", *(word for word in SMALL if not word.startswith("method=")), "federation.rounds=2"]
GRID += ["method=fedavg,fedprox", "local.lr=0.01,0.1", "seed=0..2"]
RUNS = 12  # four points with three seeds each


def sweep(capsys, *words):
    """In this process, so that its helper with everything imported serves all tests: (exit code, output)."""
    with pytest.raises(SystemExit) as end:
        main(["sweep", *map(str, words), "--wait"])
    return end.value.code, capsys.readouterr().out


def used(folder):
    """Whether a process has a file below the folder open."""
    links = (link for process in Path("/proc").glob("[0-9]*/fd") for link in _read(process))
    return any(link.startswith(f"{folder}/") for link in links)


def _read(folder):
    try:
        return [os.readlink(link) for link in folder.iterdir()]
    except OSError:  # it ended meanwhile
        return []


def state(out):
    return sorted(found.name for found in states.look(states.find(out)).values())


def test_a_killed_sweep_goes_on_without_repeating_a_finished_point(tmp_path, capsys):
    pace = tmp_path / "pace"
    pace.write_text("0.05")  # so that it cannot be over before we look
    first = start("sweep", *GRID, "--wait", "--out", tmp_path, SLOW=str(pace))
    await_("some finished runs", lambda: len(finished(tmp_path)) >= 3)
    first.send_signal(signal.SIGKILL)
    first.wait()
    await_("the end of its ranks", lambda: not used(tmp_path))
    before = {run: (run / "summary.json").stat().st_mtime_ns for run in finished(tmp_path)}
    left = RUNS - len(before)
    assert 0 < left <= RUNS - 3
    code, text = sweep(capsys, *GRID, "--out", tmp_path)
    assert code == 0
    assert text.splitlines()[0].endswith(f"{RUNS - left} done, {left} stopped")
    assert text.splitlines()[-1].startswith(f"{left}/{left}")
    assert len(finished(tmp_path)) == RUNS
    assert before == {run: (run / "summary.json").stat().st_mtime_ns for run in before}
    assert rounds(tmp_path) == RUNS * 2  # every round once
    with pytest.raises(SystemExit) as end:
        main(["report", str(tmp_path)])
    assert not end.value.code


def test_two_ranks_give_the_bits_of_one_and_debug_those_of_both(tmp_path, capsys):
    for ranks in (1, 2):
        code, _ = sweep(capsys, *FEW, "--ranks", ranks, "--out", tmp_path / str(ranks))
        assert code == 0
    assert forked.fedddp("sweep", *FEW, "--cluster", "debug", "--out", tmp_path / "debug").returncode == 0
    assert checksums(tmp_path / "1") == checksums(tmp_path / "2") == checksums(tmp_path / "debug") != {}


def test_a_failing_point_says_why_and_the_others_go_on(tmp_path, capsys):
    code, text = sweep(capsys, *FEW, "local.lr=0.1,1e30", "--ranks", 2, "--out", tmp_path)
    assert code == 1
    assert "failed  client 0 failed in round 1: its " in text
    assert state(tmp_path) == ["done", "failed"]
    again, text = sweep(capsys, *FEW, "local.lr=0.1,1e30", "--out", tmp_path)
    assert again == 1
    assert text.splitlines()[0].endswith("1 done, 1 failed")


def test_what_is_at_work_is_not_started_twice_and_can_be_cancelled(tmp_path, capsys):
    pace, out = tmp_path / "pace", tmp_path / "out"
    pace.write_text("0.3")
    words = ["digits", *SMALL, "federation.rounds=40", "seed=0,1", "--max-parallel", 1, "--out", out]
    first = start("sweep", *words, "--wait", SLOW=str(pace))
    await_("its first round", lambda: rounds(out) > 0)
    (busy,) = [run for run in runs(out) if lock.holder(run)]

    code, text = sweep(capsys, *words)  # a second sweep finds nothing to do
    assert code == 0
    assert text.splitlines()[0].endswith("1 running, 1 queued")
    assert len(text.splitlines()) == 3  # and a line for each
    again = forked.fedddp("run", f"{busy}/config.yaml", "--out", busy, "--resume", "--ranks", 1)
    assert again.returncode == 1
    assert "is at work already: process" in again.stderr
    shown = forked.fedddp("status", out).stdout
    assert " running " in shown
    assert " queued " in shown
    assert "round 1/40" in forked.fedddp("logs", busy).stdout

    assert "cancelled 2 of 2" in forked.fedddp("cancel", out).stdout
    assert first.wait(timeout=60) == 0
    assert state(out) == ["cancelled", "cancelled"]
    assert list(busy.glob("checkpoints/round-*"))
    pace.write_text("0")
    assert sweep(capsys, *words)[0] == 0
    assert state(out) == ["done", "done"]


def test_an_interrupted_sweep_stops_its_runs_with_a_checkpoint(tmp_path, capsys):
    def interrupt():
        await_("its first round", lambda: rounds(tmp_path) > 0)
        os.kill(os.getpid(), signal.SIGINT)

    long = ["federation.rounds=2000", "seed=0,1", "--max-parallel", 1, "--ranks", 2]
    threading.Thread(target=interrupt).start()
    code, _ = sweep(capsys, "digits", *SMALL, *long, "--out", tmp_path)
    assert code == 130
    assert state(tmp_path) == ["stopped", "stopped"]
    assert len(list(tmp_path.glob("*/checkpoints/round-*"))) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--nodes", "2"], "this machine is one node"),
        (["--cluster", "slurm", "--profile", "none"], "--profile none: unknown; choose from cpu, gpu, sandbox"),
        (["--ranks", "0"], "must be at least 1"),
        (["seed=0..2", "seed=5"], "seed: given twice"),
        (["method.rhoo=1"], "method.rhoo: unknown key"),
    ],
)
def test_mistakes_are_one_line(tmp_path, capsys, words, message):
    with pytest.raises(SystemExit) as end:
        main(["sweep", *FEW, *words, "--wait", "--out", str(tmp_path)])
    assert end.value.code == 2
    assert message in capsys.readouterr().err.splitlines()[-1]
    assert not runs(tmp_path)


def test_a_sweep_returns_at_once_and_goes_on_behind(tmp_path, capsys):
    pace, out = tmp_path / "pace", tmp_path / "out"
    pace.write_text("0.3")
    words = ["digits", *SMALL, "federation.rounds=40", "seed=0,1", "--max-parallel", "1", "--out", str(out)]
    done = start("sweep", *words, SLOW=str(pace))
    assert done.wait(timeout=60) == 0
    assert not finished(out)  # 80 rounds of 0.3 seconds are not over
    assert set(state(out)) <= {"queued", "running"}
    log = (out / "jobs" / "sweep.log").read_text()
    assert log.startswith(f"2 runs in {out}: 2 new")
    pace.write_text("0")
    await_("the end of its runs", lambda: state(out) == ["done", "done"])
    await_("the end of its process", lambda: not used(out))
    assert "2/2" in (out / "jobs" / "sweep.log").read_text()
    assert sweep(capsys, *words)[0] == 0


def test_a_mistake_behind_the_command_is_said_by_it(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["sweep", *FEW, "--nodes", "2", "--out", str(tmp_path)])
    assert end.value.code == 2
    with pytest.raises(SystemExit) as end:
        main(["sweep", *FEW, "method.rhoo=1", "--out", str(tmp_path)])
    assert end.value.code == 2
    assert "method.rhoo: unknown key" in capsys.readouterr().err


def test_stopped_is_not_failed():
    assert verdict(["done", "cancelled"]) == 0
    assert verdict(["done", "stopped"]) == 130
    assert verdict(["failed", "stopped", "done"]) == 1
