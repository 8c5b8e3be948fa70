"""Processes end together: with the first failure, or when their launcher is asked to stop."""

import os
import signal
import sys
import time
from multiprocessing import get_context

import pytest

from fedddp.jobs import processes
from fedddp.jobs.processes import Processes


def start(*works) -> Processes:
    """Forked processes: a number is an exit code, None is work without end."""
    context = get_context("fork")
    job = Processes([context.Process(target=_work, args=(work,)) for work in works])
    for process in job.processes:
        process.start()
    return job


def _work(code: int | None) -> None:
    if code is None:
        time.sleep(600)
    sys.exit(code)


def test_all_is_well():
    assert start(0, 0, 0).wait() == 0


def test_of_several_at_once_the_one_that_a_signal_ended_counts():
    job = start(1, None)
    os.kill(job.processes[1].pid, signal.SIGKILL)
    for process in job.processes:
        process.join()
    assert job.wait() == -signal.SIGKILL
    assert job.failed == 1


def test_the_first_failure_counts_and_ends_the_others(monkeypatch):
    monkeypatch.setattr(processes, "GRACE", 0.0)
    job = start(None, 3, None)
    assert job.wait() == 3
    assert job.failed == 1
    assert [process.exitcode for process in job.processes] == [-signal.SIGKILL, 3, -signal.SIGKILL]


def test_a_signal_to_the_launcher_reaches_the_ranks_and_then_has_its_old_meaning():
    job, before = start(None, None), signal.getsignal(signal.SIGINT)
    with job.listening():
        os.kill(os.getpid(), signal.SIGINT)
        assert job.wait() == -signal.SIGTERM
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize("code", [0, 3])
def test_a_stopped_process_is_ended_when_the_others_have(monkeypatch, code):
    monkeypatch.setattr(processes, "BLINK", 0.2)
    monkeypatch.setattr(processes, "GRACE", 0.5 if code == 0 else 60.0)
    job = start(None, code)
    os.kill(job.processes[0].pid, signal.SIGSTOP)
    began = time.monotonic()
    assert job.wait() == (code or -signal.SIGKILL)
    assert job.processes[0].exitcode == -signal.SIGKILL
    assert time.monotonic() - began < 30


def test_a_stopped_process_is_left_alone_while_the_others_work(monkeypatch):
    monkeypatch.setattr(processes, "BLINK", 0.0)
    monkeypatch.setattr(processes, "GRACE", 0.0)
    job = start(None, None)
    os.kill(job.processes[0].pid, signal.SIGSTOP)
    for _ in range(10):
        assert not job.over()
        time.sleep(0.05)
    assert job.processes[0].exitcode is None
    job.signal(signal.SIGKILL)
    job.wait()
