"""A line on the terminal that counts seconds while something quiet takes long; nothing in a log file."""

import os
import signal
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

PATIENCE, PACE = 2.0, 0.5  # seconds before the line appears, and between two of its changes
WIPE = "\r\x1b[K"
SPEAKING = threading.Lock()  # held by the one that speaks; processes forked meanwhile find it held, and are quiet


@contextmanager
def waiting(what: str | Callable[[], str]) -> Iterator[None]:
    """`what` and how long it has taken, from two seconds on; the line is gone when it is over.

    The cursor waits at the line's beginning, so whatever is printed meanwhile, by this process or by its ranks, takes
    the line's place, and it comes back below. One line at a time: what waits within another says nothing, of the
    ranks of torchrun one speaks, and while somebody types at a prompt (a debugger's), nobody.
    """
    first = sys.stderr.isatty() and os.environ.get("RANK", "0") == "0"
    if not first or not SPEAKING.acquire(blocking=False):
        yield
        return
    terminal, over, begun = sys.stderr.fileno(), threading.Event(), time.monotonic()

    def write(text: str) -> None:
        """Past Python's buffers, whose locks a process that is forked meanwhile would find taken for good."""
        with suppress(OSError):
            os.write(terminal, text.encode())

    def show() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # they are for the thread that works
        pause = PATIENCE
        while not over.wait(pause):
            if _typed_at(terminal):
                continue
            pause = PACE
            said = what if isinstance(what, str) else what()
            write(f"{WIPE}{said}: {time.monotonic() - begun:.0f} s\r")
        if pause == PACE:
            write(WIPE)

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        SPEAKING.release()


def _typed_at(terminal: int) -> bool:
    """Whether a line is being edited there: then keys reach the editor one by one."""
    with suppress(termios.error):
        return not termios.tcgetattr(terminal)[3] & termios.ICANON
    return False
