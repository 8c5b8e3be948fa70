"""Processes end together: with the first failure, or when their launcher is asked to stop."""

import os
import signal
import sys
import time
from multiprocessing import get_context

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
