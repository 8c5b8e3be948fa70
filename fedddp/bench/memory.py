"""What a rank's peak adds to Python with its modules, beside what a run must hold: data, rows and the solver's buffers.

    must   = training and test examples + rows of the clients at home + cohort width · P · the solver's buffers
    adds   = peak resident memory of a whole run (rounds, evaluation, checkpoints) - resident memory before it

A small run of the same kind goes first, so that what is counted is no library's.
"""

import argparse
import ctypes
import gc
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedddp.bench.workloads import WORKLOADS
from fedddp.config import loading as configuration
from fedddp.core import tree
from fedddp.exchange.group import Exchange
from fedddp.jobs import here
from fedddp.runs.build import make_federation, make_task
from fedddp.runs.job import Job
from fedddp.runs.rank import keep_memory

CASES = {
    "fedavg": "a_adam",
    "bayes_admm": "a_ivon",
    "logistic": "b_sgd",
}
BUFFERS = {"sgd": 2, "adam": 4, "ivon": 8}  # [P] of a client at work: parameters, gradient, and what the solver keeps
SMALL = ["split.clients=10", "data.fraction=0.01", "federation.rounds=2"]
MB = 1e6


def call(arguments: argparse.Namespace, words: list[str]) -> int:
    """Each case in processes of its own, so that none finds what another left."""
    given = [word for word in words if word.startswith("case=")]
    rest = [word for word in words if word not in given]
    for case in given or [f"case={name}" for name in CASES]:
        code = here.start(partial(_rank, [case, *rest]), arguments.ranks)
        if code:
            return code
    return 0


def _rank(words: list[str]) -> int:
    case = words[0].removeprefix("case=")
    torch.set_num_threads(1)
    keep_memory()
    exchange = Exchange.connect(torch.device("cpu"))
    settings = [*WORKLOADS[CASES[case]].settings, *words[1:], "evaluation.samples=4"]
    row = measure(case, settings, exchange)
    if exchange.rank == 0:
        print(line(row), flush=True)
    exchange.close()
    return 0


def measure(name: str, words: list[str], exchange: Exchange) -> dict[str, Any]:
    """Of the rank whose peak adds most."""
    _whole_run([*words, *SMALL], exchange)
    before = settled()
    _whole_run([*words, "federation.rounds=3"], exchange)
    adds = resident("VmHWM") - before
    must = needed(words, exchange)
    most = max(exchange.gather([adds, before, *must.values()]))
    row = {"case": name, "ranks": exchange.world_size, **dict(zip(("adds", "before", *must), most, strict=True))}
    return row | {"ratio": most[0] / sum(most[2:])}


def line(row: dict[str, Any]) -> str:
    parts = " + ".join(f"{name} {row[name] / MB:.1f}" for name in ("data", "rows", "buffers"))
    return (
        f"{row['case']:<11} {row['ranks']} ranks  peak adds {row['adds'] / MB:.1f} MB to {row['before'] / MB:.0f}  "
        f"must hold {parts}  ratio {row['ratio']:.2f}"
    )


def needed(words: list[str], exchange: Exchange) -> dict[str, int]:
    """Bytes that no way of computing this run could do without."""
    config = configuration.load(None, words)
    task = make_task(config, exchange.device)
    federation = make_federation(config, task, exchange)
    data = (task.data.train.inputs, task.data.train.targets, task.data.test.inputs, task.data.test.targets)
    buffers = federation.plan.width * task.layout.numel * BUFFERS[config["local.name"]]
    return {
        "data": sum(_bytes(part) for part in data),
        "rows": sum(_bytes(leaf) for leaf in tree.leaves(federation.store.memory).values()),
        "buffers": buffers * task.initial.itemsize,
    }


def resident(name: str = "VmRSS") -> int:
    """Bytes of this process in memory: VmRSS now, VmHWM at most so far, RssAnon what is in no file (Linux)."""
    for entry in Path("/proc/self/status").read_text().splitlines():
        if entry.startswith(f"{name}:"):
            return 1024 * int(entry.split()[1])
    raise ValueError(f"{name}: this system does not tell how much memory a process has")


def settled() -> int:
    """Give back what is free, forget the peak so far, and see what is left."""
    gc.collect()
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):
        libc.malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    return resident()


def _whole_run(words: list[str], exchange: Exchange) -> None:
    config = configuration.load(None, [*words, "checkpoint.every=1"])
    with tempfile.TemporaryDirectory() as folder:
        shared = exchange.tell(folder, 0)  # a checkpoint's shards lie in one folder
        Job(config, Path(shared) / "run", exchange, exchange.device, quiet=True).run(resume=False)
        exchange.barrier()


def _bytes(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.itemsize
