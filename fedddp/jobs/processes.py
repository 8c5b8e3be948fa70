"""The processes of one run on this machine: they end together."""

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection
from multiprocessing.process import BaseProcess

STOPS = (signal.SIGINT, signal.SIGTERM)
GRACE = 10.0  # seconds that the other ranks have to end after one failed


@dataclass
class Processes:
    """The processes of one run."""

    processes: list[BaseProcess]
    failed: int = -1  # the first that did
    failed_at: float = 0.0

    def over(self) -> bool:
        """Whether all have ended; those that outlive a failed one for long are ended."""
        codes = [process.exitcode for process in self.processes]
        if any(codes):
            if self.failed < 0:
                self.failed, self.failed_at = next(i for i, code in enumerate(codes) if code), time.monotonic()
            if time.monotonic() - self.failed_at > GRACE:
                self.signal(signal.SIGKILL)
        return None not in codes

    def signal(self, number: int) -> None:
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
