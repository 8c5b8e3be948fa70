"""The commands of `fedddp`: one file each, named after it, with `add(parser)` and `call(arguments) -> exit code`.

The parser imports all of them, so what is slow to import belongs inside `call`.
"""

import argparse


def experiment(parser: argparse.ArgumentParser) -> None:
    """[EXPERIMENT] key=value ..."""
    parser.add_argument("words", nargs="*", metavar="EXPERIMENT key=value", help="default: digits")
