"""get a data set from its publisher, or list which can be had and which are there"""

import argparse
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", choices=["get", "list"])
    parser.add_argument("names", nargs="*", metavar="NAME", help="sets to get (see `fedddp data list`)")
    parser.add_argument(
        "--root", default="", metavar="DIR", help="where to put them (default: FEDDDP_DATA, then ./data)"
    )
    parser.add_argument("--mirror", default="", metavar="URL", help="take the files from URL/FILE, not the publisher")


def call(arguments: argparse.Namespace) -> int:
    from fedddp.core.data import root

    place = root(arguments.root)
    if arguments.action == "list":
        return _list(place)
    return _get(arguments.names, place, arguments.mirror)


def _get(names: list[str], place: Path, mirror: str) -> int:
    from fedddp.data._download import get
    from fedddp.data._publishers import SETS

    choices = f"{', '.join(SETS)} (others are your own or made by a tool: see `fedddp list data`)"
    if not names:
        raise ValueError(f"data get: name a set, one of {choices}")
    for name in names:
        if name not in SETS:
            raise ValueError(f"data get {name}: choose from {choices}")
    for name in names:
        for line in get(SETS[name], place, mirror):
            print(line)
    return 0


def _list(place: Path) -> int:
    from fedddp.data._download import present
    from fedddp.data._publishers import SETS

    for name, published in SETS.items():
        size = sum(file.size for file in published.files) / 1e6
        state = "there" if present(published, place) else f"{size:.1f} MB to get"
        print(f"  {name:<16} {place / published.folder}  {state}")
    return 0
