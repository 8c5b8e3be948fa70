"""a table of finished runs"""

import argparse
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")


def call(arguments: argparse.Namespace) -> int:
    from fedddp.report import table

    print(table(arguments.folders))
    return 0
