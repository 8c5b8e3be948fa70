"""run all methods on three data sets, tuned alike, and rank them; or other tables: --noise, --texts, --leaving"""

import argparse
from pathlib import Path
from typing import Any

from fedddp.core.progress import waiting


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("runs/ranking"), metavar="DIR", help="where the runs go")
    parser.add_argument("--results", type=Path, metavar="FILE", help="of all runs (default: the project's own)")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="write the page there")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="first seeds to run (default: all 3)")
    parser.add_argument("--methods", default="", metavar="A,B", help="these alone (default: all)")
    other = parser.add_mutually_exclusive_group()
    other.add_argument("--noise", action="store_true", help="what noise costs instead: fills that page's tables")
    other.add_argument("--texts", action="store_true", help="adapters and a small GPT: fills that page's tables")
    other.add_argument("--leaving", action="store_true", help="what is left of a client that left instead: likewise")
    parser.add_argument("--collect", action="store_true", help="run nothing: write the page of what is done")


def call(arguments: argparse.Namespace) -> int:
    import torch

    from fedddp.core.files import write_text
    from fedddp.reproduce import noise, ranking, ranking_page, texts

    if arguments.leaving:
        return _leaving(arguments)
    name = "noise" if arguments.noise else "texts" if arguments.texts else "ranking"
    kinds: dict[str, Any] = {"noise": noise, "texts": texts}
    other = kinds.get(name)
    path = arguments.results or ranking.file(name)
    chosen = [name for name in arguments.methods.split(",") if name]
    table = other.table(chosen) if other else ranking.methods(chosen)
    torch.set_num_threads(1)
    if not arguments.collect:
        with waiting("ranking"):
            for entry in ranking.run(arguments.out, path, ranking.SEEDS[: arguments.seeds], table):
                print(ranking_page.line(entry), flush=True)
    entries = ranking.read(path)
    if not arguments.docs:
        print(other.markdown(entries) if other else ranking_page.page(entries))
        return 0
    page = other.filled(arguments.docs.read_text(), entries) if other else ranking_page.page(entries)
    write_text(arguments.docs, page)
    print(arguments.docs)
    return 0


def _leaving(arguments: argparse.Namespace) -> int:
    import torch

    from fedddp.core.files import write_text
    from fedddp.reproduce import leaving

    path = arguments.results or leaving.path()
    torch.set_num_threads(1)
    if not arguments.collect:
        with waiting("leaving"):
            for row in leaving.run(path):
                print(*row, flush=True)
    rows = leaving.read(path)
    if arguments.docs:
        write_text(arguments.docs, leaving.filled(arguments.docs.read_text(), rows))
    else:
        print(leaving.markdown(rows))
    return 0
