"""Runs of fedddp, the plain loop and the bare arithmetic in turn, on every rank of this job."""

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedddp import config as configuration
from fedddp.bench.bare import Bare
from fedddp.bench.plain import Plain
from fedddp.bench.workloads import WORKLOADS
from fedddp.build import make_federation, make_task
from fedddp.cohort import Cohort
from fedddp.evaluate import evaluate
from fedddp.exchange import Exchange
from fedddp.federate import Federation
from fedddp.records import Recorder


def compare(name: str, words: list[str], rounds: int, exchange: Exchange) -> dict[str, Any]:
    """Seconds per round and final accuracy of each, for one repetition of a workload."""
    config = configuration.load(None, [*WORKLOADS[name].settings, *words, f"federation.rounds={rounds}"])
    task = make_task(config, exchange.device)
    solver = config["local.name"]
    found: dict[str, Any] = {"workload": name, "solver": solver, "ranks": exchange.world_size}
    federation = make_federation(config, task, exchange)
    found["fedddp"] = _federated(federation, rounds)
    plain = Plain(task, config, federation.plan.at_home(exchange.rank).tolist(), exchange)
    found["plain"] = _timed(plain.round, task.initial, rounds, federation)
    if federation.oracle.chain is not None and solver in ("sgd", "adam"):
        mine = federation.plan.cohorts(torch.arange(task.num_clients), memory=not federation.store.empty)
        cohorts = [Cohort(a.ids, 0, task, federation.oracle) for a in mine if a.rank == exchange.rank]
        bare = Bare(task, cohorts, config.local.batch_size, config.local.lr, adam=solver == "adam")
        found["bare"] = _timed(bare.round, task.initial, rounds, federation, prepare=bare.prepare)
    return found


def _federated(federation: Federation, rounds: int) -> dict[str, float]:
    """Rounds as a run has them, records included."""
    exchange, server = federation.exchange, federation.method.init_server(federation.task)
    seconds, parts = [], defaultdict[str, float](float)
    with tempfile.TemporaryDirectory() as folder:
        recorder = Recorder(Path(folder), rounds, 0, "bench", quiet=True) if exchange.rank == 0 else None
        for number in range(rounds):
            exchange.barrier()
            start = time.perf_counter()
            server, report = federation.round(server, number)
            before = time.perf_counter()
            if recorder is not None:
                recorder.round({"round": number, "train_loss": report.train_loss, "seconds": before - start}, {})
            seconds.append(time.perf_counter() - start)
            for part, value in report.seconds.items():
                parts[part] += value / rounds
            parts["records"] += (time.perf_counter() - before) / rounds
        if recorder is not None:
            recorder.close()
    accuracy = evaluate(federation.task, exchange, server.theta.unsqueeze(0))["accuracy"]
    return {"seconds": _slowest(seconds, exchange), "accuracy": accuracy, **parts}


def _timed(
    step: Callable[[Tensor, int], Tensor],
    theta: Tensor,
    rounds: int,
    federation: Federation,
    prepare: Callable[[int], None] | None = None,
) -> dict[str, float]:
    """With `prepare` the step is the arithmetic alone: what comes before it and the mean over ranks are not timed."""
    exchange, seconds = federation.exchange, []
    for number in range(rounds):
        if prepare is not None:
            prepare(number)
        exchange.barrier()
        start = time.perf_counter()
        theta = step(theta, number)
        seconds.append(time.perf_counter() - start)
        if prepare is not None:
            exchange.add_floats(theta)
            theta = theta / int(federation.task.num_examples.sum())
    accuracy = evaluate(federation.task, exchange, theta.unsqueeze(0))["accuracy"]
    return {"seconds": _slowest(seconds, exchange), "accuracy": accuracy}


def _slowest(seconds: list[float], exchange: Exchange) -> float:
    """The median over rounds (the first warms up) of the slowest rank."""
    micro = exchange.agree([int(s * 1e6) for s in seconds])
    return statistics.median(micro[1:] or micro) / 1e6
