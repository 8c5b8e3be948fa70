"""Ending runs that are queued or at work: through Slurm, or by asking the process that holds the run."""

import os
import signal
import socket
from collections.abc import Iterable
from pathlib import Path

from fedddp.jobs import queue, ticket
from fedddp.runs import lock


def cancel(folders: Iterable[Path]) -> None:
    """Each ends after its round, with a checkpoint if Slurm's KillWait allows; one in a local queue is not started."""
    jobs = []
    for folder in folders:
        found = ticket.read(folder)
        if found is not None:
            found.note(folder, "cancelled")
        if found is not None and found.cluster == "slurm":
            jobs.append(found.job)
        else:
            _ask(folder)
    queue.cancel(jobs)


def _ask(folder: Path) -> None:
    owner = lock.holder(folder)
    if owner is None:
        return
    if owner["host"] != socket.gethostname():
        raise ValueError(f"{folder}: is at work elsewhere ({lock.describe(owner)}); cancel it there")
    os.kill(int(owner["pid"]), signal.SIGTERM)
