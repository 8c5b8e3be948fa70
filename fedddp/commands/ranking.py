"""run all methods on three data sets, tuned alike, and rank them on one page"""

import argparse
from pathlib import Path


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("runs/ranking"), metavar="DIR", help="where the runs go")
    parser.add_argument("--results", type=Path, metavar="FILE", help="of all runs (default: the project's own)")
    parser.add_argument("--docs", type=Path, metavar="FILE", help="write the page there")
    parser.add_argument("--seeds", type=int, default=3, metavar="N", help="first seeds to run (default: all 3)")
    parser.add_argument("--methods", default="", metavar="A,B", help="these alone (default: all)")
    parser.add_argument("--collect", action="store_true", help="run nothing: write the page of what is done")


def call(arguments: argparse.Namespace) -> int:
    import torch

    from fedddp.core.files import write_text
    from fedddp.reproduce import ranking, ranking_page

    path = arguments.results or ranking.file()
    torch.set_num_threads(1)
    if not arguments.collect:
        methods = [name for name in arguments.methods.split(",") if name]
        for entry in ranking.run(arguments.out, path, ranking.SEEDS[: arguments.seeds], methods):
            print(ranking_page.line(entry), flush=True)
    text = ranking_page.page(ranking.read(path))
    if arguments.docs:
        write_text(arguments.docs, text)
        print(arguments.docs)
    else:
        print(text)
    return 0
