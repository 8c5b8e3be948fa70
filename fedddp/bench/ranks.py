"""One rank and several, in turn: how much of another core a round gets, and how much the bare arithmetic gets.

    efficiency = seconds on one rank / (ranks · seconds on all of them)

Cores share caches, memory and sometimes execution units, so the arithmetic's own efficiency stands beside fedddp's: a
rank more cannot be worth more than that.
"""

import argparse
import json
import statistics
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedddp.bench.measure import compare
from fedddp.bench.workloads import WORKLOADS
from fedddp.exchange.group import Exchange
from fedddp.jobs import here
from fedddp.runs.rank import keep_memory


def call(arguments: argparse.Namespace, words: list[str]) -> int:
    """Each repetition in new processes; a second word names the workload: `fedddp bench ranks a_adam`."""
    names = [w for w in arguments.words if w in WORKLOADS] or ["a_sgd", "a_adam"]
    for name in names:
        found = []
        for _ in range(arguments.repeat):
            found.append(_repetition(name, words, arguments))
            print(line(name, found[-1], arguments.ranks), flush=True)
        middle = {who: statistics.median(row[who] for row in found) for who in found[0]}
        print(f"{name:<8} median: " + ", ".join(f"{who} {value:.2f}" for who, value in middle.items()), flush=True)
    return 0


def _repetition(name: str, words: list[str], arguments: argparse.Namespace) -> dict[str, float]:
    """The efficiency of each contender."""
    seconds = []
    with tempfile.TemporaryDirectory() as folder:
        for ranks in (1, arguments.ranks):
            out = Path(folder) / f"{ranks}.json"
            if here.start(partial(_rank, name, words, arguments.rounds, out), ranks):
                raise RuntimeError(f"bench ranks: {ranks} ranks failed")
            seconds.append(json.loads(out.read_text()))
    one, all_ = seconds
    return {who: efficiency(one[who]["seconds"], all_[who]["seconds"], arguments.ranks) for who in ("fedddp", "bare")}


def efficiency(one: float, several: float, ranks: int) -> float:
    return one / (ranks * several)


def line(name: str, found: dict[str, float], ranks: int) -> str:
    return f"{name:<8} 1 -> {ranks} ranks  efficiency {found['fedddp']:.2f}, the bare arithmetic's {found['bare']:.2f}"


def _rank(name: str, words: list[str], rounds: int, out: Path) -> int:
    torch.set_num_threads(1)
    keep_memory()
    exchange = Exchange.connect(torch.device("cpu"))
    row: dict[str, Any] = compare(name, words, rounds, exchange, plain=False)
    if exchange.rank == 0:
        out.write_text(json.dumps(row))
    exchange.close()
    return 0
