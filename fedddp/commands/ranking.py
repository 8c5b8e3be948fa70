"""run all methods on three data sets, tuned alike, and rank them on one page; or what noise costs (--noise)"""

import argparse
from pathlib import Path

from fedddp.core.progress import waiting


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("runs/ranking"), metavar="DIR", help="where the runs go")
    parser.add_argument("--results", type=Path, metavar="FILE", help="of all runs (default: the project's own)")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="write the page there")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="first seeds to run (default: all 3)")
    parser.add_argument("--methods", default="", metavar="A,B", help="these alone (default: all)")
    parser.add_argument("--noise", action="store_true", help="what noise costs instead: fills that page's tables")
    parser.add_argument("--collect", action="store_true", help="run nothing: write the page of what is done")


def call(arguments: argparse.Namespace) -> int:
    import torch

    from fedddp.core.files import write_text
    from fedddp.reproduce import noise, ranking, ranking_page

    path = arguments.results or ranking.file("noise" if arguments.noise else "ranking")
    chosen = [name for name in arguments.methods.split(",") if name]
    table = noise.table(chosen) if arguments.noise else ranking.methods(chosen)
    torch.set_num_threads(1)
    if not arguments.collect:
        with waiting("ranking"):
            for entry in ranking.run(arguments.out, path, ranking.SEEDS[: arguments.seeds], table):
                print(ranking_page.line(entry), flush=True)
    entries = ranking.read(path)
    if not arguments.docs:
        print(noise.markdown(entries) if arguments.noise else ranking_page.page(entries))
        return 0
    page = noise.filled(arguments.docs.read_text(), entries) if arguments.noise else ranking_page.page(entries)
    write_text(arguments.docs, page)
    print(arguments.docs)
    return 0
