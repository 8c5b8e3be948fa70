"""print what a rank of a run wrote"""

import argparse
import sys
import time
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder")
    parser.add_argument("--rank", type=int, default=0)
    parser.add_argument("--lines", type=int, help="only the last so many")
    parser.add_argument("--follow", action="store_true", help="go on printing until the run ends")


def call(arguments: argparse.Namespace) -> int:
    from fedddp.jobs import ticket

    found = ticket.read(arguments.run)
    if found is None:
        raise ValueError(f"{arguments.run}: was not launched by sweep or submit, so it has no log (job.json)")
    path = Path(found.log.format(rank=arguments.rank))
    if not path.exists():
        ranks = f"the run has ranks 0 to {found.ranks - 1}; " if arguments.rank >= found.ranks else ""
        raise ValueError(f"rank {arguments.rank}: has no log yet; {ranks}fedddp status {arguments.run} says why")
    text = path.read_text(errors="replace")
    sys.stdout.write("".join(text.splitlines(keepends=True)[-arguments.lines :] if arguments.lines else text))
    if arguments.follow:
        _follow(arguments.run, path, len(text.encode()))
    return 0


def _follow(run: Path, path: Path, at: int) -> None:
    from fedddp.jobs import states

    active = True
    while active:
        active = states.look([run])[run].active
        with open(path, "rb") as file:
            file.seek(at)
            new = file.read()
        at += len(new)
        sys.stdout.write(new.decode(errors="replace"))
        sys.stdout.flush()
        time.sleep(1.0 if active else 0.0)
