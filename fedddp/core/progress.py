"""A line on the terminal that counts seconds while something quiet takes long; nothing in a log file."""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

PATIENCE, PACE = 2.0, 0.5  # seconds before the line appears, and between two of its changes


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """`what` and how long it has taken, from two seconds on; the line is gone when it is over."""
    if not sys.stderr.isatty():
        yield
        return
    over, begun = threading.Event(), time.monotonic()

    def show() -> None:
        pause = PATIENCE
        while not over.wait(pause):
            pause = PACE
            print(f"\r{what}: {time.monotonic() - begun:.0f} s", end="", file=sys.stderr, flush=True)
        if pause == PACE:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    thread = threading.Thread(target=show, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
