"""The `fedddp` command: one line for an error, a traceback only with --debug."""

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pkgutil import iter_modules

from fedddp import __version__, commands


def main(words: Sequence[str] | None = None) -> None:
    words = list(sys.argv[1:] if words is None else words)
    arguments = _parse(words)
    try:
        sys.exit(arguments.call(arguments))
    except BrokenPipeError:  # the reader of our output left: `fedddp list | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        sys.exit(130)
    except Exception as error:
        if arguments.debug:
            raise
        if _speaks(error):
            print(f"fedddp: {_one_line(error)}", file=sys.stderr)
        sys.exit(2 if isinstance(error, ValueError) else 1)


def _parse(words: list[str]) -> argparse.Namespace:
    """Options and key=value words in any order, which argparse alone does not allow."""
    parser = _parser()
    arguments, rest = parser.parse_known_args(words)
    if any(word.startswith("-") for word in rest) or (rest and not hasattr(arguments, "words")):
        parser.error(f"not understood: {' '.join(rest)}")
    if rest:
        arguments.words += rest
    arguments.all_words = words
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


def _speaks(error: Exception) -> bool:
    """What all ranks know alike, rank 0 says; what only one rank knows, that rank says."""
    from fedddp.exchange import PeerFailed, RankLost
    from fedddp.federate import ClientFailed, Diverged

    shared = isinstance(error, PeerFailed | ClientFailed | Diverged | ValueError | RankLost)
    return not shared or os.environ.get("RANK", "0") == "0"


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split()) or "failed"
    ours = isinstance(error, ValueError | OSError) or (
        isinstance(error, RuntimeError) and type(error) is not RuntimeError
    )
    return text if ours else f"{type(error).__name__}: {text} (--debug shows where)"
