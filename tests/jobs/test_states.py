"""A run's state from its files, its lock and Slurm's words."""

import json

import pytest

from fedddp.jobs import queue, states
from fedddp.jobs.states import State, last_error, look, progress
from fedddp.jobs.table import table
from fedddp.jobs.ticket import Ticket
from fedddp.runs import lock


def ticket(folder, **given):
    made = Ticket(
        **{"cluster": "slurm", "job": "12_3", "words": ["seed=3"], "rounds": 9, "ranks": 2}
        | {"log": f"{folder}/log-{{rank}}"}
        | given
    )
    made.write(folder)
    (folder / "config.yaml").write_text("federation: {rounds: 9}\n")
    return made


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("PENDING|Priority", State("queued", "job 12_3: Priority")),
        ("RUNNING|None", State("running", "job 12_3")),
        ("COMPLETING|None", State("running", "job 12_3")),
        ("CANCELLED by 1000", State("cancelled", "job 12_3")),
        ("OUT_OF_MEMORY", State("failed", "job 12_3 out of memory: no log was written")),
        ("", State("failed", "job 12_3 ended: no log was written")),
    ],
)
def test_slurms_words(tmp_path, monkeypatch, word, expected):
    ticket(tmp_path)
    monkeypatch.setattr(queue, "states", lambda jobs: {job: word for job in jobs if word})
    assert look([tmp_path]) == {tmp_path: expected}


def test_a_job_that_waits_again_was_requeued(tmp_path, monkeypatch):
    ticket(tmp_path)
    (tmp_path / "log-0").write_text("at work\n")
    monkeypatch.setattr(queue, "states", lambda jobs: dict.fromkeys(jobs, "PENDING|BeginTime"))
    assert look([tmp_path])[tmp_path].name == "requeued"


def test_a_finished_run_asks_nobody(tmp_path, monkeypatch):
    ticket(tmp_path)
    (tmp_path / "summary.json").write_text("{}")
    monkeypatch.setattr(queue, "states", lambda jobs: {} if not jobs else 1 / 0)
    assert look([tmp_path])[tmp_path].name == "done"


def test_a_run_with_a_damaged_summary_is_not_done(tmp_path):
    (tmp_path / "config.yaml").write_text("federation: {rounds: 9}\n")
    (tmp_path / "summary.json").write_text('{"rounds": 9')
    state = look([tmp_path])[tmp_path]
    assert state.name == "stopped"
    assert "summary.json: is damaged" in state.detail
    assert "--resume makes it anew" in state.detail


def test_the_cause_is_the_failing_ranks_own_line(tmp_path):
    mine = ticket(tmp_path)
    (tmp_path / "log-0").write_text("round 1\nfedddp: rank 0 lost contact with another rank: it died\nsrun: error\n")
    (tmp_path / "log-1").write_text("round 1\nfedddp: MemoryError: 3 GB\nsrun: error\n")
    assert last_error(mine) == "MemoryError: 3 GB"
    (tmp_path / "log-1").write_text("")
    assert last_error(mine).startswith("rank 0 lost contact")
    (tmp_path / "log-0").write_text("slurmstepd: error: oom-kill\n\n")
    assert last_error(mine) == "slurmstepd: error: oom-kill"


def test_a_local_run_without_its_sweep_was_stopped(tmp_path):
    home = tmp_path / "jobs"
    ticket(tmp_path, cluster="local", job=str(home))
    with lock.hold(home):
        assert look([tmp_path])[tmp_path].name == "queued"
    assert look([tmp_path])[tmp_path].name == "stopped"
    with lock.hold(tmp_path):
        assert look([tmp_path])[tmp_path].name == "running"


def test_a_run_of_nobodys_sweep(tmp_path):
    assert look([tmp_path])[tmp_path].name == "new"
    (tmp_path / "config.yaml").write_text("federation: {rounds: 9}\n")
    assert look([tmp_path])[tmp_path].name == "stopped"
    assert progress(tmp_path).rounds == 9


def test_the_table(tmp_path):
    for number in (1, 2):
        folder = tmp_path / f"run-{number}"
        ticket(folder, words=["split=iid", f"seed={number}"])
        lines = [{"round": r, "accuracy": 0.5 + r / 100, "seconds": 2.0} for r in (1, 2, 3)]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"round": 4, "ac')
    shown = {tmp_path / "run-1": State("running", "job 5"), tmp_path / "run-2": State("done")}
    head, first, second, _, counts = table(shown, tmp_path).splitlines()
    assert head.split() == ["run", "state", "round", "metric", "rounds/min", "left"]
    assert first.split() == ["run-1", "running", "3/9", "0.5300", "30.0", "0:00:12", "seed=1", "job", "5"]
    assert second.split() == ["run-2", "done", "3/9", "0.5300", "seed=2"]
    assert counts == "1 done, 1 running"


def test_no_run_below(tmp_path):
    with pytest.raises(ValueError, match="no run"):
        states.find(tmp_path)
