"""The processes of one run on this machine: they end together."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from pathlib import Path

STOPS = (signal.SIGINT, signal.SIGTERM)
GRACE = 10.0  # seconds that the other ranks have to end after one failed
BLINK = 1.0  # seconds that one of them may be stopped (SIGSTOP): it cannot end by itself


@dataclass
class Processes:
    """The processes of one run."""

    processes: list[BaseProcess]
    failed: int = -1  # the first that did
    failed_at: float = 0.0
    asked: bool = False  # to stop
    stopped: dict[int, float] = field(default_factory=dict)  # process id -> since when it was seen stopped

    def over(self) -> bool:
        """Whether all have ended; those that outlive a failed one for long are ended."""
        codes = [process.exitcode for process in self.processes]
        if any(codes) and self.failed < 0:
            ended = [number for number, code in enumerate(codes) if code]
            # of several in one look that which a signal ended: it could not speak, and the others failed for want of it
            self.failed, self.failed_at = min(ended, key=lambda number: (codes[number] or 0) > 0), time.monotonic()
        if self.failed >= 0 and time.monotonic() - self.failed_at > GRACE:
            self.signal(signal.SIGKILL)
        elif self.asked or codes.count(None) < len(codes):  # the rest should end by itself, and cannot if it is stopped
            self._end_stopped(BLINK if self.failed >= 0 else GRACE)
        return None not in codes

    def _end_stopped(self, patience: float) -> None:
        """A stopped process gets no signal but SIGKILL."""
        alive = [process.pid for process in self.processes if process.exitcode is None and process.pid]
        now = time.monotonic()
        self.stopped = {pid: self.stopped.get(pid, now) for pid in alive if is_stopped(pid)}
        for pid, since in self.stopped.items():
            if now - since >= patience:
                os.kill(pid, signal.SIGKILL)

    def signal(self, number: int) -> None:
        self.asked = True
        for process in self.processes:
            if process.exitcode is None and process.pid:
                os.kill(process.pid, number)

    def wait(self) -> int:
        """The exit code of the first that failed, or 0."""
        while not self.over():
            connection.wait([p.sentinel for p in self.processes if p.exitcode is None], timeout=0.5)
        return self.processes[self.failed].exitcode or 0 if self.failed >= 0 else 0

    @contextmanager
    def listening(self) -> Iterator[None]:
        """A signal that should stop this process stops the ranks, after their round; then this process ends too."""
        kept = {number: signal.signal(number, lambda *_: self.signal(signal.SIGTERM)) for number in STOPS}
        try:
            yield
        finally:
            for number, handler in kept.items():
                signal.signal(number, handler)


def is_stopped(pid: int) -> bool:
    """By SIGSTOP or a debugger (Linux)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except OSError:
        return False
