"""A run's folder belongs to one process, and to nobody when that process is gone."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from fedddp.runs import lock
from tests.jobs.command import await_

HOLD = "import sys, time; from pathlib import Path; from fedddp.runs import lock\n"
HOLD += "with lock.hold(Path(sys.argv[1])): print('held', flush=True); time.sleep(600)"


def held_by_another(folder: Path) -> subprocess.Popen[str]:
    other = subprocess.Popen([sys.executable, "-c", HOLD, folder], stdout=subprocess.PIPE, text=True)
    assert other.stdout is not None
    assert other.stdout.readline() == "held\n"
    return other


def test_a_held_folder_is_refused_with_its_holder(tmp_path):
    other = held_by_another(tmp_path)
    try:
        with pytest.raises(lock.Busy) as refused, lock.hold(tmp_path, patience=0.2):
            pass
        assert f"process {other.pid} on {os.uname().nodename}" in str(refused.value)
        assert f"fedddp cancel {tmp_path}" in str(refused.value)
        assert lock.holder(tmp_path)["pid"] == str(other.pid)
    finally:
        other.kill()
        other.wait()


def test_a_killed_holder_leaves_nothing_behind(tmp_path):
    other = held_by_another(tmp_path)
    other.send_signal(signal.SIGKILL)
    other.wait()
    assert lock.holder(tmp_path) is None
    with lock.hold(tmp_path, patience=0.0):
        assert lock.holder(tmp_path)["pid"] == str(os.getpid())
    assert lock.holder(tmp_path) is None


def test_waiting_for_the_holder_to_end(tmp_path):
    other = held_by_another(tmp_path)
    other.terminate()
    with lock.hold(tmp_path, patience=10.0):
        await_("the end of the other", lambda: other.poll() is not None, 10.0)


def test_a_slurm_job_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "12")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    with lock.hold(tmp_path):
        assert lock.describe(lock.holder(tmp_path)).startswith("Slurm job 12_3, process ")


def test_nobody_holds_what_was_never_held(tmp_path):
    assert lock.holder(tmp_path / "none") is None
