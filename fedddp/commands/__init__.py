"""The commands of `fedddp`: one file each, named after it, with `add(parser)` and `call(arguments) -> exit code`.

The parser imports all of them, so what is slow to import belongs inside `call`.
"""

import argparse
from pathlib import Path


def experiment(parser: argparse.ArgumentParser) -> None:
    """[EXPERIMENT] key=value ..."""
    parser.add_argument("words", nargs="*", metavar="EXPERIMENT key=value", help="default: digits")


def member(parser: argparse.ArgumentParser, which: str) -> None:
    """RUN --client NAME [--rounds n] ..."""
    parser.add_argument("run", type=Path, metavar="RUN", help="the run's folder; it stays as it is")
    parser.add_argument("--client", required=True, metavar="NAME", help=which)
    parser.add_argument(
        "--rounds", type=int, default=0, help="to go on for with those that are there then (default: 0)"
    )
    parser.add_argument("--out", type=Path, help="the new folder (default: beside RUN)")
    parser.add_argument("--ranks", type=int, help="processes on this machine (default: one per GPU or core)")
