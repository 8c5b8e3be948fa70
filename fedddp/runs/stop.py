"""A wish to stop: Ctrl-C, SIGTERM or a scheduler's warning, read between rounds."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType


@dataclass
class Stop:
    """Set by a signal; the handler itself does nothing else."""

    asked: bool = False
    signals: list[int] = field(default_factory=list)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """For the length of a run; in a thread beside the main one there is nothing to listen to."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
        before = {number: signal.signal(number, self._note) for number in numbers}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # a launcher may have held them back until now
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:  # a second Ctrl-C does not wait for the round
            raise KeyboardInterrupt
        self.asked = True
        self.signals.append(number)
