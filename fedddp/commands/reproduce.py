"""make a table or figure of a paper anew, with its published numbers beside it"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedddp.core.progress import waiting

if TYPE_CHECKING:
    from fedddp.reproduce.protocol import Protocol
    from fedddp.reproduce.results import Results


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="of a table or figure; see --list")
    parser.add_argument("--list", action="store_true", help="all of them, and how far each has come")
    parser.add_argument("--rows", nargs="+", default=(), metavar="ROW", help="run only these of a table")
    parser.add_argument("--columns", nargs="+", default=(), metavar="COLUMN", help="run only these of a table")
    parser.add_argument("--seeds", type=int, default=0, metavar="N", help="run only the first N seeds of a table")
    parser.add_argument("--out", type=Path, default=Path("runs/reproduce"), metavar="DIR", help="where the runs go")
    parser.add_argument("--ranks", type=int, default=1, help="of one run (default: 1)")
    parser.add_argument("--max-parallel", type=int, metavar="N", help="most runs at the same time")
    parser.add_argument("--collect", action="store_true", help="start nothing: take the numbers of what is done")
    parser.add_argument("--results", type=Path, metavar="FILE", help="of all numbers (default: the project's own)")
    parser.add_argument("--docs", type=Path, nargs="+", metavar="FILE", help="write these pages' tables anew")


def call(arguments: argparse.Namespace) -> int:
    from fedddp.reproduce import docs, protocol, results

    found = results.read(arguments.results)
    code = 0
    if arguments.name and not arguments.list:
        chosen = protocol.read(arguments.name)
        code, found = _make(chosen, found, arguments)
    elif not arguments.docs:
        for name in protocol.names():
            print(_line(protocol.read(name), found))
    for page in arguments.docs or ():
        docs.rewrite(page, found)
        print(page)
    return code


def _make(chosen: "Protocol", found: "Results", arguments: argparse.Namespace) -> tuple[int, "Results"]:
    """Run or draw what is missing, keep its numbers, and show the table with a page of its runs."""
    from fedddp.reproduce import results, state, work

    part = chosen.part(arguments.rows, arguments.columns, arguments.seeds)
    print(_line(part, found, work.count(part, arguments.out)), flush=True)
    code = 0
    if chosen.figure and not arguments.collect:
        with waiting(f"figure {chosen.figure}"):
            picture = work.draw(chosen, arguments.out)
        print(picture)
    elif not arguments.collect:
        code = work.run(part, arguments.out, arguments.ranks, arguments.max_parallel)
    if chosen.columns or not arguments.collect:
        with waiting("collecting numbers"):
            found = work.collect(chosen, arguments.out, found)
        results.write(found, arguments.results)
    own = found.get(chosen.name, {})
    if chosen.columns:
        print("\n" + state.markdown(chosen, own))
        with waiting("writing the report"):
            page = work.page(chosen, arguments.out)
        print(page)
    print(state.summary(chosen, own))
    return code, found


def _line(chosen: "Protocol", found: "Results", runs: dict[str, int] | None = None) -> str:
    """Name, state, and how long what is left will take: by the runs that are there, or by the results' seeds."""
    from fedddp.reproduce import state

    own = found.get(chosen.name, {})
    text = f"{chosen.name:<24} {state.summary(chosen, own)}"
    runs = state.left(chosen, own) if runs is None else runs
    todo = f"{sum(runs.values())} runs left, " if chosen.columns else ""
    return f"{text}\n{'':<24} {chosen.about}; {todo}about {chosen.long(runs)} on one core"
