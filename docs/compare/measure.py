"""python measure.py COMMAND...: processor seconds of a round, of all processes that the command starts.

It runs the command with 1 and with 6 rounds (ROUNDS), so that what comes before the first round is not counted.
"""

import os
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

TICK = os.sysconf("SC_CLK_TCK")
FEW, MANY = 1, 6


def spent(mark: str) -> dict[str, float]:
    """Processor seconds of every live process with this mark in its environment."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (process / "environ").read_bytes():
                fields = (process / "stat").read_text().rpartition(")")[2].split()
                found[process.name] = (int(fields[11]) + int(fields[12])) / TICK
    return found


def total(command: list[str], rounds: int) -> tuple[float, float]:
    """Processor seconds of the command, and seconds by the clock."""
    mark, seen, start = f"measured-{uuid4()}", {}, time.monotonic()
    with subprocess.Popen(command, env={**os.environ, "ROUNDS": str(rounds), "MARK": mark}) as process:
        while process.poll() is None:
            seen |= spent(mark)
            time.sleep(0.2)
    assert process.returncode == 0, command
    return sum(seen.values()), time.monotonic() - start


if __name__ == "__main__":
    few, many = (total(sys.argv[1:], rounds) for rounds in (FEW, MANY))
    processor, clock = ((b - a) / (MANY - FEW) for a, b in zip(few, many, strict=True))
    print(f"{processor:.2f} processor seconds a round, {clock:.2f} by the clock; before the first round {few[0]:.1f}")
