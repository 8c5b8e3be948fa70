"""fedddp, the plain loop, the bare arithmetic and its products alone, round by round in turn, on every rank of a job.

They take turns within a repetition, so that whatever else the machine does falls on all alike.
"""

import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedddp.bench.bare import Bare, Products
from fedddp.bench.contender import Contender
from fedddp.bench.plain import Plain, PlainBayes
from fedddp.bench.workloads import WORKLOADS
from fedddp.clients.cohort import Cohort
from fedddp.config import loading as configuration
from fedddp.evaluation.evaluate import evaluate
from fedddp.exchange.group import Exchange
from fedddp.records.records import Recorder
from fedddp.rounds.federate import Federation
from fedddp.runs.build import make_federation, make_task

# a processor's own seconds tell more where others are at work beside; a rank that waits spends them, too
CLOCKS: dict[str, Callable[[], float]] = {"seconds": time.perf_counter, "processor": time.process_time}


class Ours(Contender):
    """Rounds as a run has them, records included."""

    def __init__(self, federation: Federation, rounds: int, folder: Path) -> None:
        self.federation, self.parts = federation, defaultdict[str, list[float]](list)
        self.server = federation.method.init_server(federation.task)
        quiet = Recorder(folder, rounds, 0, "bench", quiet=True) if federation.exchange.rank == 0 else None
        self.recorder = quiet

    @property
    def theta(self) -> Tensor:  # type: ignore[override]
        theta: Tensor = self.server.theta
        return theta

    def round(self, number: int) -> None:
        start = time.perf_counter()
        self.server, report = self.federation.round(self.server, number)
        done = time.perf_counter()
        if self.recorder is not None:
            self.recorder.round({"round": number, "train_loss": report.train_loss, "seconds": done - start}, {})
        for part, value in {**report.seconds, "records": time.perf_counter() - done}.items():
            self.parts[part].append(value)

    def shares(self) -> dict[str, float]:
        """Seconds per round of each part; what a rank waits in the exchange for the slower ones is `waiting`."""
        mean = {part: statistics.mean(values) for part, values in self.parts.items()}
        micro = [-int(1e6 * value) for value in self.parts["exchange"]]
        quickest = -statistics.mean(self.federation.exchange.agree(micro)) / 1e6  # of the rank that came last
        return {**mean, "exchange": quickest, "waiting": mean["exchange"] - quickest}


def compare(name: str, words: list[str], rounds: int, exchange: Exchange, plain: bool = True) -> dict[str, Any]:
    """Seconds per round and final accuracy of each, for one repetition of a workload; `plain`: the loop, too."""
    config = configuration.load(None, [*WORKLOADS[name].settings, *words, f"federation.rounds={rounds}"])
    task = make_task(config, exchange.device)
    solver = config["local.name"]
    federation = make_federation(config, task, exchange)
    contenders: dict[str, Contender] = {}
    with tempfile.TemporaryDirectory() as folder:
        contenders["fedddp"] = ours = Ours(federation, rounds, Path(folder))
        if plain:
            loop = PlainBayes if solver == "ivon" else Plain
            contenders["plain"] = loop(task, config, federation.plan.at_home(exchange.rank).tolist(), exchange)
        if federation.oracle.chain is not None and solver in ("sgd", "adam"):
            mine = federation.plan.cohorts(torch.arange(task.num_clients), memory=not federation.store.empty)
            cohorts = [Cohort(a.ids, 0, task, federation.oracle) for a in mine if a.rank == exchange.rank]
            bare = task, cohorts, config.local, solver == "adam", exchange
            contenders |= {"bare": Bare(*bare), "products": Products(*bare)}
        found = in_turn(contenders, rounds, exchange)
        if ours.recorder is not None:
            ours.recorder.close()
    for contender, result in found.items():
        if contender == "products":
            continue
        result["accuracy"] = evaluate(task, exchange, contenders[contender].theta.unsqueeze(0))["accuracy"]
    found["fedddp"] |= ours.shares()
    return {"workload": name, "solver": solver, "ranks": exchange.world_size, **found}


def in_turn(contenders: dict[str, Contender], rounds: int, exchange: Exchange) -> dict[str, dict[str, float]]:
    taken: dict[str, dict[str, list[float]]] = {name: {clock: [] for clock in CLOCKS} for name in contenders}
    for number in range(rounds):
        for name, contender in contenders.items():
            contender.prepare(number)
            exchange.barrier()
            starts = {clock: now() for clock, now in CLOCKS.items()}
            contender.round(number)
            for clock, now in CLOCKS.items():
                taken[name][clock].append(now() - starts[clock])
            contender.finish()
    return {name: {clock: _slowest(each, exchange) for clock, each in own.items()} for name, own in taken.items()}


def _slowest(seconds: list[float], exchange: Exchange) -> float:
    """The median over rounds (the first warms up) of the slowest rank."""
    micro = exchange.agree([int(s * 1e6) for s in seconds])
    return statistics.median(micro[1:] or micro) / 1e6
