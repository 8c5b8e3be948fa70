"""measure speed as ratios: fedddp beside a plain loop and the arithmetic alone"""

import argparse
import json
import os
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

from fedddp.core.progress import waiting

STUDIES = ("curvature", "exchange", "steps")  # asked for by name; each prints a table of its own
# studies that start their ranks themselves
OWN_RANKS = (
    "adapters", "clients", "gpu", "launches", "memory", "methods", "predict", "ranks", "scale", "servers", "startup",
)  # fmt: skip


def add(parser: argparse.ArgumentParser) -> None:
    studies = ", ".join(sorted(STUDIES + OWN_RANKS))
    about = f"default: all workloads; or one of the studies {studies}"
    parser.add_argument("words", nargs="*", metavar="WORKLOAD key=value", help=about)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--predict", action="store_true", help="what a round would cost, from measured constants")
    parser.add_argument("--clients", type=int, help="with --predict: of the federation asked about")
    parser.add_argument("--params", type=int, help="with --predict: of its model")
    parser.add_argument("--bandwidth", type=float, help="with --predict: bytes per second between ranks")
    parser.add_argument("--out", type=Path, help="also write every measurement to this JSON file")


def call(arguments: argparse.Namespace) -> int:
    from fedddp.bench.workloads import WORKLOADS
    from fedddp.jobs import here

    known = [*WORKLOADS, *STUDIES, *OWN_RANKS]
    names = [w for w in arguments.words if "=" not in w] or list(WORKLOADS)
    for name in names:
        if name not in known:
            raise ValueError(f"{name}: unknown workload; choose from {', '.join(known)}")
    words = [w for w in arguments.words if "=" in w]
    if arguments.predict:
        names = ["predict"]
    with waiting(f"bench {', '.join(names)}"):
        if names[0] in OWN_RANKS:
            code: int = import_module(f"fedddp.bench.{names[0]}").call(arguments, words)
            return code
        if "RANK" not in os.environ and arguments.ranks > 1:
            return here.start(partial(_measure, names, words, arguments), arguments.ranks)
        return _measure(names, words, arguments)


def _measure(names: list[str], words: list[str], arguments: argparse.Namespace) -> int:
    import torch

    from fedddp.bench.measure import compare
    from fedddp.exchange.group import Exchange
    from fedddp.runs.rank import keep_memory

    torch.set_num_threads(1)
    keep_memory()
    exchange = Exchange.connect(torch.device("cpu"))
    rows = []
    for name in names:
        if name in STUDIES:
            rows += import_module(f"fedddp.bench.{name}").call(words, exchange)
            continue
        for _ in range(arguments.repeat):
            rows.append(compare(name, words, arguments.rounds, exchange))
            if exchange.rank == 0:
                print(_line(rows[-1]), flush=True)
    if exchange.rank == 0 and arguments.out:
        arguments.out.write_text(json.dumps(rows, indent=2) + "\n")
    exchange.close()
    return 0


def _line(row: dict[str, Any]) -> str:
    ours = row["fedddp"]
    rest = (ours["exchange"] + ours["server"] + ours["records"]) / ours["seconds"]
    words = [f"{row['workload']:<8} {row['ranks']} ranks  fedddp {ours['seconds']:.3f} s ({ours['accuracy']:.4f})"]
    words.append(f"plain {row['plain']['seconds']:.3f} s ({row['plain']['accuracy']:.4f})")
    words.append(f"speed-up {row['plain']['seconds'] / ours['seconds']:.2f}x")
    if "bare" in row:
        words.append(f"bare {row['bare']['seconds']:.3f} s ({row['bare']['accuracy']:.4f})")
        words.append(f"overhead {ours['seconds'] / row['bare']['seconds']:.2f}x")
        words.append(f"products {ours['seconds'] / row['products']['seconds']:.2f}x")
    spent = ours["processor"]
    by = [f"speed-up {row['plain']['processor'] / spent:.2f}x"]
    if "bare" in row:
        by += [f"overhead {spent / row['bare']['processor']:.2f}x"]
        by += [f"products {spent / row['products']['processor']:.2f}x"]
    words.append(f"by processor {', '.join(by)}")
    waited = ours["waiting"] / ours["seconds"]
    return "  ".join([*words, f"exchange+server+records {rest:.1%}, waiting {waited:.1%}"])
