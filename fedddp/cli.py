"""The `fedddp` command: one line for an error, a traceback only with --debug."""

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pkgutil import iter_modules

from fedddp import __version__, commands
from fedddp.runs.rank import attempt


def main(words: Sequence[str] | None = None) -> None:
    words = list(sys.argv[1:] if words is None else words)
    arguments = _parse(words)
    sys.exit(attempt(partial(arguments.call, arguments), arguments.debug))


def _parse(words: list[str]) -> argparse.Namespace:
    """Options and key=value words in any order, which argparse alone does not allow."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(words)
    if any(word.startswith("-") for word in rest) or (rest and not hasattr(arguments, "words")):
        parser.error(f"not understood: {' '.join(rest)}")
    if rest:
        arguments.words += rest
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="fedddp", description="Federated and Bayesian learning as collectives.")
    parser.add_argument("--version", action="version", version=__version__)
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for found in iter_modules(commands.__path__):
        command = import_module(f"fedddp.commands.{found.name}")
        sub = subparsers.add_parser(found.name, help=command.__doc__, description=command.__doc__)
        command.add(sub)
        sub.add_argument("--debug", action="store_true", help="show tracebacks")
        sub.set_defaults(call=command.call)
    return parser
