"""Work that goes on behind a command that has returned: a forked process with a session and a log of its own."""

import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

Ready = Callable[[], None]


def behind(work: Callable[[Ready], int], log: Path) -> tuple[int, bool]:
    """Start `work` and return as soon as it says that it is ready, or has ended: its process id, and whether it was.

    No end of this process or of its terminal ends it. What it prints goes to the log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    listening, speaking = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        os.close(listening)
        _alone(work, log, speaking)
    os.close(speaking)
    with os.fdopen(listening, "rb") as pipe:
        return child, pipe.read(1) == b"."


def _alone(work: Callable[[Ready], int], log: Path, speaking: int) -> None:
    """The forked process, to its end."""
    code = 1
    try:
        os.setsid()
        with log.open("w") as file, open(os.devnull) as nothing:
            for source, target in ((nothing, 0), (file, 1), (file, 2)):
                os.dup2(source.fileno(), target)
            sys.stdout, sys.stderr = os.fdopen(1, "w", buffering=1), os.fdopen(2, "w", buffering=1)

        def ready() -> None:
            os.write(speaking, b".")
            os.close(speaking)

        code = work(ready)
    except ValueError as error:
        print(f"fedddp: {error}", file=sys.stderr)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(code)
