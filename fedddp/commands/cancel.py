"""end the runs of a folder that are queued or at work; they can go on later"""

import argparse
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help="a run's folder, or one with many")


def call(arguments: argparse.Namespace) -> int:
    from fedddp.jobs import states
    from fedddp.jobs.cancel import cancel

    found = states.look(states.find(arguments.folder))
    active = [folder for folder, state in found.items() if state.active]
    cancel(active)
    print(f"cancelled {len(active)} of {len(found)} runs" if active else "nothing is queued or at work")
    return 0
