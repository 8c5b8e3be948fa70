"""The commands of `fedddp`: one file each, named after it, with `add(parser)` and `call(arguments) -> exit code`.

The parser imports all of them, so what is slow to import belongs inside `call`.
"""

import argparse
from collections.abc import Sequence


def experiment(parser: argparse.ArgumentParser) -> None:
    """[EXPERIMENT] key=value ..."""
    parser.add_argument("words", nargs="*", metavar="EXPERIMENT key=value", help="default: digits")


def split_words(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The experiment, if one is named, and the settings."""
    names = [word for word in words if "=" not in word]
    if len(names) > 1:
        raise ValueError(f"{names[1]!r}: not understood; settings are written key=value")
    return (names[0] if names else None), [word for word in words if "=" in word]
