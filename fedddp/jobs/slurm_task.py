"""One task of a Slurm job: meet the others, be a rank of the run, and have the job requeued when it must stop.

    srun python -m fedddp.jobs.slurm_task FOLDER EXPERIMENT key=value ...

Slurm's warning (SIGUSR2 before the time limit or on preemption, SIGTERM without one) ends the run after the current
round, with a checkpoint; then rank 0 asks for the requeue. If the round takes longer than the warning leaves, the job
is requeued all the same and goes on from its last checkpoint. A cancelled job is not requeued.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedddp.config import loading as config
from fedddp.core.files import damaged
from fedddp.jobs.rendezvous import Place, join
from fedddp.runs import lock
from fedddp.runs.claim import read_config
from fedddp.runs.rank import STOPPED, attempt, work

MARGIN = 15.0  # seconds before Slurm's SIGKILL that a requeue may take
RETRIES, DELAY = 20, 120  # of a script that names no others
PATIENCE = 120.0  # seconds to wait for the processes of an earlier attempt to be gone from a failed node


@dataclass(frozen=True)
class SlurmTask:
    """What submitit keeps in its file and calls in every task."""

    folder: str
    words: tuple[str, ...]
    retries: int = RETRIES  # most requeues of a job
    delay: int = DELAY  # seconds from Slurm's warning to its SIGKILL

    def __call__(self) -> None:
        hold_signals_back()
        sys.exit(self.run(Place.in_slurm(), restarts()))

    def run(self, place: Place, restarts: int) -> int:
        folder = Path(self.folder)
        if restarts > self.retries:
            return _give_up(place, f"was requeued {restarts} times, more than retries={self.retries} allows")
        folder.mkdir(parents=True, exist_ok=True)
        if place.rank == 0:
            _await_quiet(folder)
        if not damaged(folder / "summary.json"):
            return 0
        kept = join(folder, place)
        if kept is None:
            return 0
        if place.rank == 0:
            Watchdog(max(5.0, self.delay - MARGIN), self.retries - restarts).start()
        code = run(folder, self.words)
        if code != STOPPED:
            return code
        return 0 if place.rank else _stopped(folder, restarts, self.retries)


def hold_signals_back() -> None:
    """Until the run listens: a warning that comes while Python is still importing must wait, not kill."""
    signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGUSR2, signal.SIGTERM))


def run(folder: Path, words: Sequence[str]) -> int:
    """`fedddp run` in this process; its exit code."""
    return attempt(lambda: work(_configuration(folder, words), folder, resume=True))


def _configuration(folder: Path, words: Sequence[str]) -> config.Config:
    """As submitted: what lay in the folder while the job was queued must be what was written there."""
    if (folder / "config.yaml").exists():
        read_config(folder / "config.yaml")
    return config.load(*config.split_words(words))


def restarts() -> int:
    return int(os.environ.get("SLURM_RESTART_COUNT", "0"))


def _await_quiet(folder: Path) -> None:
    """A node that Slurm gave up may still run the attempt before this one: let it end, or finish the run."""
    until = time.monotonic() + PATIENCE
    while lock.holder(folder) is not None and time.monotonic() < until:
        time.sleep(0.5)


def _stopped(folder: Path, restarts: int, retries: int) -> int:
    """The checkpoint is written; come back, unless the job was cancelled."""
    if not _wanted():
        return STOPPED
    if restarts >= retries:
        return _give_up(None, f"{folder}: stopped, and not requeued after {restarts} times (retries={retries})")
    return requeue()


def _give_up(place: Place | None, why: str) -> int:
    if place is None or place.rank == 0:
        print(f"fedddp: {why}; submit it again to go on from its last checkpoint", file=sys.stderr, flush=True)
    return 1


def _wanted() -> bool:
    """Whether Slurm still counts the job as running: a cancelled one is already completing."""
    command = ["squeue", "--noheader", "--jobs", os.environ["SLURM_JOB_ID"], "--format", "%T"]
    asked = subprocess.run(command, capture_output=True, text=True)
    return asked.returncode != 0 or asked.stdout.strip() == "RUNNING"


def requeue() -> int:
    """Back into the queue; Slurm then ends what is left of this attempt."""
    job = os.environ["SLURM_JOB_ID"]
    print(f"job {job}: requeued", file=sys.stderr, flush=True)
    asked = subprocess.run(["scontrol", "requeue", job], capture_output=True, text=True)
    if asked.returncode:
        print(f"fedddp: job {job} cannot be requeued: {asked.stderr.strip()}", file=sys.stderr, flush=True)
    return int(asked.returncode != 0)


class Watchdog(threading.Thread):
    """Requeues when a warning came and the round does not end in time.

    It reads signal numbers that Python writes to a file descriptor the moment they arrive, even while the main
    thread is inside a collective and cannot run a handler.
    """

    def __init__(self, seconds: float, retries_left: int) -> None:
        super().__init__(daemon=True)
        self.seconds, self.retries_left = seconds, retries_left
        self.reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)

    def run(self) -> None:
        while signal.SIGUSR2 not in os.read(self.reader, 1):
            pass
        time.sleep(self.seconds)
        if self.retries_left > 0 and _wanted():
            print("the round is longer than Slurm's warning: back to the last checkpoint", file=sys.stderr, flush=True)
            requeue()


if __name__ == "__main__":
    SlurmTask(sys.argv[1], tuple(sys.argv[2:]))()
