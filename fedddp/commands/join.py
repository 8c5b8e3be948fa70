"""let a client of the split that was away join a run, in a new folder, and go on with it"""

import argparse
from pathlib import Path

from fedddp.commands import member
from fedddp.core.progress import waiting


def add(parser: argparse.ArgumentParser) -> None:
    member(parser, "a number in federation.without")


def call(arguments: argparse.Namespace) -> int:
    from fedddp.jobs import here
    from fedddp.runs import members

    out: Path = arguments.out or members.beside(arguments.run, "with", arguments.client)
    with waiting(f"letting client {arguments.client} in"):
        before = members.configuration(arguments.run)
        config = members.join(arguments.run, before, arguments.client, arguments.rounds, out)
    return here.go_on(config, out, arguments.ranks, arguments.debug)
