"""take a client out of a run, in a new folder, and go on without it"""

import argparse
from pathlib import Path

from fedddp.commands import member
from fedddp.core.progress import waiting


def add(parser: argparse.ArgumentParser) -> None:
    member(parser, "as in its clients.json")


def call(arguments: argparse.Namespace) -> int:
    from fedddp.jobs import here
    from fedddp.runs import members

    out: Path = arguments.out or members.beside(arguments.run, "without", arguments.client)
    with waiting(f"taking client {arguments.client} out"):
        before = members.configuration(arguments.run)
        config = members.forget(arguments.run, before, arguments.client, arguments.rounds, out)
    return here.go_on(config, out, arguments.ranks, arguments.debug)
