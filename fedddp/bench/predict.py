"""What a round would cost on other machines and for other federations, from constants measured on this one.

    fedddp bench --predict                                             measure the constants, and check predictions
    fedddp bench --predict --ranks 1024 --clients 1000000 --params 10000000 --bandwidth 5e10 flop=5e-14 step=3e-4 ...

The first prints predicted beside measured rounds, of federations that the constants come from and of others. The second
takes measured constants too, except those that are given: another processor's `flop`, `number`, `step`, ... (see
fedddp/bench/model.py), and what the federation is like: active, examples, batch, epochs, width, tests.
"""

import argparse
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import partial
from statistics import median
from typing import Any

import numpy as np
import torch

from fedddp.bench.model import CHUNK, Machine, Round, features, hops, predict
from fedddp.config import loading as configuration
from fedddp.config.schema import typed
from fedddp.evaluation.evaluate import Evaluator
from fedddp.exchange.group import Exchange
from fedddp.jobs import here
from fedddp.rounds.federate import Federation
from fedddp.rounds.plan import Assignment
from fedddp.runs.build import make_federation, make_task
from fedddp.runs.rank import keep_memory

SOME = ["split.name=resample", "split.clients=32", "split.minimum=20", "split.most=60"]  # digits, the default data
MANY = ["split.name=resample", "split.clients=5000", "federation.participation=0.1"]
UNEQUAL = ["split.name=dirichlet", "split.clients=20", "split.minimum=5"]
CALIBRATE = {  # small enough to take seconds, different enough to tell the constants apart
    "logistic": [*SOME, "model.name=logistic", "local.batch_size=10", "federation.cohort_width=16"],
    "logistic, wide": [*SOME, "split.clients=512", "model.name=logistic", "federation.cohort_width=64"],
    "mlp 32": [*SOME, "model.hidden=[32]", "local.batch_size=20", "federation.cohort_width=16"],
    "mlp 200": [*SOME, "model.hidden=[200]", "local.batch_size=16", "federation.cohort_width=8"],
    "mlp 400-400": [*SOME, "model.hidden=[400,400]", "local.batch_size=32", "federation.cohort_width=8"],
    "mlp 400-400 alone": [*SOME, "model.hidden=[400,400]", "local.batch_size=8", "federation.cohort_width=1"],
    "mlp 1000-300": [*SOME, "model.hidden=[1000,300]", "local.batch_size=16", "federation.cohort_width=4"],
}
CHECK = {  # never seen by the fit
    "mlp 100": [*SOME, "model.hidden=[100]", "local.batch_size=32", "federation.cohort_width=4"],
    "mlp 300-100": [*SOME, "model.hidden=[300,100]", "local.batch_size=20", "local.epochs=2"],
    "mlp 600-600": [*SOME, "model.hidden=[600,600]", "local.batch_size=10", "federation.cohort_width=2"],
    "unequal clients": [*UNEQUAL, "model.hidden=[200,100]", "local.epochs=1"],
    "500 of 5,000": [*MANY, "model.name=logistic", "local.batch_size=10"],
}


@dataclass
class Asked:
    """What a prediction is asked for."""

    clients: int = 1_000_000
    active: int = 0  # in a round; 0: a hundredth of the clients
    params: int = 1_000_000
    examples: int = 100  # of a client
    batch: int = 32
    epochs: int = 1
    width: int = 8  # clients computed together
    tests: int = 0  # examples evaluated in every round


@dataclass
class Measured:
    """Several rounds of a federation, after a first that warms up."""

    federation: Federation
    batch: int
    server: Any = None
    rounds: list[float] = field(default_factory=list)  # seconds of each
    parts: dict[str, list[float]] = field(default_factory=dict)
    cohorts: list[tuple[Assignment, float]] = field(default_factory=list)
    last: list[Assignment] = field(default_factory=list)  # the cohorts of a round
    words: int = 0

    @classmethod
    def of(cls, words: Sequence[str], exchange: Exchange) -> "Measured":
        config = configuration.load(None, words)
        found = cls(make_federation(config, make_task(config, exchange.device), exchange), config.local.passes()[1])
        if exchange.world_size == 1:  # nothing is waited for, so what others do need not be counted
            found.federation.clock = time.process_time
        return found

    def watch(self, number: int, exchange: Exchange) -> None:
        """One more round."""
        clock = self.federation.clock
        exchange.barrier()
        start = clock()
        before = self.federation.method.init_server(self.federation.task) if number == 0 else self.server
        self.server, report = self.federation.round(before, number)
        middle = clock()
        Evaluator(self.federation, 0)(self.server, number)
        end = clock()
        whole, moved = exchange.agree([int(1e6 * (end - start)), -int(1e6 * report.seconds["exchange"])])
        if number == 0:
            return
        self.words = report.bytes // 8
        self.rounds.append(whole / 1e6)
        report.seconds["exchange"] = -moved / 1e6  # of the rank that came last, which waits for nobody
        for name, value in (report.seconds | {"evaluate": end - middle}).items():
            self.parts.setdefault(name, []).append(value)
        assert report.clients is not None
        assert report.took is not None
        took = dict(zip(report.clients.tolist(), report.took.tolist(), strict=True))
        self.cohorts += [(cohort, took[cohort.ids[0]]) for cohort in report.cohorts]
        self.last = report.cohorts

    @property
    def task(self) -> Round:
        """What was to be done in a round."""
        task, plan = self.federation.task, self.federation.plan
        return Round(
            ranks=plan.ranks,
            works=[(cohort.rank, cohort.work) for cohort in self.last],
            active=sum(len(cohort.ids) for cohort in self.last),
            params=task.layout.numel,
            flops=_flops(task.layout.sizes),
            batch=self.batch,
            words=self.words,
            tests=len(task.data.test),
        )


def call(arguments: argparse.Namespace, words: list[str]) -> int:
    if arguments.clients or arguments.params:
        return _ask(arguments, words)
    if "RANK" not in os.environ and arguments.ranks > 1:
        return here.start(partial(call, arguments, words), arguments.ranks)
    exchange = _connect()
    found = measure(CALIBRATE | CHECK, words, arguments.rounds, exchange)
    machine = calibrate([found[name] for name in CALIBRATE], exchange)
    if exchange.rank == 0:
        print("  ".join(f"{name} {value:.3g}" for name, value in asdict(machine).items()))
        for name, measured in found.items():
            print(line(name, measured, predict(machine, measured.task), name in CHECK), flush=True)
    exchange.close()
    return 0


def line(name: str, found: Measured, guess: dict[str, float], new: bool) -> str:
    known, measured = "new " if new else "seen", median(found.rounds)
    return (
        f"{known}  {name:<18} {found.task.ranks} ranks  {found.task.params:>7,} parameters  predicted "
        f"{1e3 * guess['round']:8.2f} ms  measured {1e3 * measured:8.2f} ms  ratio {guess['round'] / measured:.2f}"
    )


def _ask(arguments: argparse.Namespace, words: list[str]) -> int:
    names = {entry.name for entry in fields(Machine)}
    given = dict(word.split("=", 1) for word in words)
    about = {key: float(value) for key, value in given.items() if key in names}
    if arguments.bandwidth:
        about["bandwidth"] = arguments.bandwidth
    asked = {key: int(float(value)) for key, value in given.items() if key not in names}
    asked |= {key: getattr(arguments, key) for key in ("clients", "params") if getattr(arguments, key)}
    shape, _ = typed("predict", Asked, asked)
    machine = replace(_here(arguments, names - set(about)), **about)
    active = shape.active or max(1, shape.clients // 100)
    sizes = (shape.params, shape.examples, shape.batch, shape.epochs, shape.width, shape.tests)
    found = predict(machine, Round.even(arguments.ranks, active, *sizes))
    print("  ".join(f"{name} {value:.3g}" for name, value in asdict(machine).items()))
    print(f"{shape.clients:,} clients, {active:,} active, {shape.params:,} parameters on {arguments.ranks:,} ranks:")
    print("  ".join(f"{name} {value:.4g} s" for name, value in found.items() if name != "busy"), end="  ")
    print(f"ranks busy {found['busy']:.0%} of the local work's time")
    return 0


def _here(arguments: argparse.Namespace, missing: set[str]) -> Machine:
    """This machine's constants, if any is needed."""
    if missing <= {"bandwidth"}:
        return Machine()
    exchange = _connect()
    machine = calibrate(list(measure(CALIBRATE, [], arguments.rounds, exchange).values()), exchange)
    exchange.close()
    return machine


def _connect() -> Exchange:
    torch.set_num_threads(1)
    keep_memory()
    return Exchange.connect(torch.device("cpu"))


def measure(
    settings: Mapping[str, Sequence[str]], words: Sequence[str], rounds: int, exchange: Exchange
) -> dict[str, Measured]:
    """Rounds of all federations in turn, so that a machine that gets slower gets slower for all."""
    found = {name: Measured.of([*given, *words], exchange) for name, given in settings.items()}
    for number in range(max(rounds, 10)):
        for measured in found.values():
            measured.watch(number, exchange)
    return found


def calibrate(runs: Sequence[Measured], exchange: Exchange) -> Machine:
    """The constants that fit best, in relative errors."""
    local = [(features(run.task, cohort.work), took) for run in runs for cohort, took in run.cohorts]
    cohort, step, row, flop, number = fit(*zip(*local, strict=True))
    summed = [median(run.parts["exchange"]) + median(run.parts["server"]) for run in runs]
    trips, word = fit([(1.0, run.task.words) for run in runs], summed)
    plan, client = fit([(1.0, run.task.active) for run in runs], [median(run.parts["plan"]) for run in runs])
    chunk = min(median(run.parts["evaluate"]) / -(-run.task.tests // (CHUNK * run.task.ranks)) for run in runs)
    rest = {"trip": trips / hops(exchange.world_size), "word": word, "plan": plan, "client": client, "chunk": chunk}
    return Machine(cohort, step, row, flop, number, **rest)


def _flops(sizes: Sequence[int]) -> int:
    """Of one example, forward and backward: two products for the first layer's weights, three for the others'."""
    return 6 * sum(sizes) - 2 * sizes[0]


def fit(rows: Sequence[Sequence[float]], seconds: Sequence[float]) -> list[float]:
    """Least squares of relative errors, no constant below 0; then right in the mean, since noise makes those low."""
    table = np.array(rows) / np.array(seconds)[:, None]
    scale = table.max(0)
    free = list(range(table.shape[1]))
    while True:
        found = np.linalg.lstsq(table[:, free] / scale[free], np.ones(len(table)), rcond=None)[0]
        if found.min() >= 0 or len(free) == 1:
            break
        free.pop(int(found.argmin()))
    constants = np.zeros(table.shape[1])
    constants[free] = np.maximum(found, 0) / scale[free]
    return [float(value) for value in constants * np.mean(1 / (table @ constants))]
