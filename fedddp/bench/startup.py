"""From the shell prompt to the first round of workload A, beside `import torch` and reading the data; in turn.

A run of no rounds stands for the time until the first begins: it does all that comes before, and writes its summary.
Processor seconds, of all ranks together, are those to trust on a machine that others use too.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from fedddp.bench.workloads import WORKLOADS

READ = "import sys, torch; from fedddp.config import loading as config; config.load(None, sys.argv[1:]).data.load()"
NOT_READ = "import sys, torch; from fedddp.config import loading as config; config.load(None, sys.argv[1:]).data"


class Spent(NamedTuple):
    wall: float
    processor: float


def call(arguments: argparse.Namespace, words: list[str]) -> int:
    words = [*WORKLOADS["a_adam"].settings, *words, "federation.rounds=0", "evaluation.histograms=0"]
    rows = []
    for _ in range(arguments.repeat):
        rows.append(_measure(words, arguments.ranks))
        print(_line(rows[-1], arguments.ranks), flush=True)
    least = {name: Spent(*map(min, zip(*(row[name] for row in rows), strict=True))) for name in rows[0]}
    print(f"least of each: {_line(least, arguments.ranks)}", flush=True)
    return 0


def _measure(words: list[str], ranks: int) -> dict[str, Spent]:
    python = [sys.executable]
    with tempfile.TemporaryDirectory() as folder:
        run = [*python, "-m", "fedddp", "run", *words, "--ranks", str(ranks), "--out", f"{folder}/run"]
        commands = {
            "torch": [*python, "-c", "import torch"],
            "without": [*python, "-c", NOT_READ, *words],
            "with": [*python, "-c", READ, *words],
            "run": run,
        }
        found = {name: _spent(command) for name, command in commands.items()}
    data = Spent(*(max(a - b, 0.0) for a, b in zip(found["with"], found["without"], strict=True)))
    return {"torch": found["torch"], "data": data, "run": found["run"]}


def _spent(command: list[str]) -> Spent:
    start, before = time.perf_counter(), os.times()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = os.times()
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return Spent(time.perf_counter() - start, used)


def _line(found: dict[str, Spent], ranks: int) -> str:
    torch, data, run = (found[name] for name in ("torch", "data", "run"))
    more = Spent(*(r - t - d for r, t, d in zip(run, torch, data, strict=True)))
    words = [f"{name} {a:.2f} s ({b:.2f})" for name, (a, b) in (("import torch", torch), ("data", data), ("run", run))]
    return f"{words[0]} + {words[1]}; {ranks} ranks, {words[2]}: {more.wall:.2f} s ({more.processor:.2f}) more"
