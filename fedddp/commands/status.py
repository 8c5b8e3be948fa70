"""a table of runs: state, round, accuracy, pace, time left"""

import argparse
import time
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs"), metavar="DIR", help="default: runs")
    parser.add_argument("--watch", action="store_true", help="again every few seconds, until all have ended")
    parser.add_argument("--every", type=float, default=5.0, metavar="SECONDS")


def call(arguments: argparse.Namespace) -> int:
    from fedddp.jobs import states
    from fedddp.jobs.table import table

    while True:
        found = states.look(states.find(arguments.folder))
        print(("\x1b[H\x1b[2J" if arguments.watch else "") + table(found, arguments.folder), flush=True)
        if not arguments.watch or not any(state.active for state in found.values()):
            return 0
        time.sleep(arguments.every)
