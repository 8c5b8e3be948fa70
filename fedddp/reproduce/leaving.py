"""What is left of a client that has left.

A run with it, the same without it and after some more rounds, and a run that never had it: of each the accuracy on test
points and on the client's own examples (at the posterior's mean), and how well an attacker who knows losses tells its
examples from test points (Yeom et al. 2018): the share of pairs in which the client's has the smaller one.
"""

import json
import re
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import torch
from torch import Tensor

from fedddp.config import loading as configuration
from fedddp.config.loading import folder
from fedddp.core.files import write_text
from fedddp.core.task import Task
from fedddp.exchange.group import Exchange
from fedddp.records.records import read_metrics
from fedddp.runs import members
from fedddp.runs.build import make_task
from fedddp.runs.finished import Run
from fedddp.runs.job import Job

CLIENT, ROUNDS, MORE, SEEDS = 3, 15, (0, 1, 3, 6), (62, 63, 64)
COMMON = ["data.pixels=0-1", "model.activation=relu", "local.epochs=2", "local.batch_size=64"]
COMMON += [
    f"federation.rounds={ROUNDS}",
    "evaluation.histograms=0",
    "evaluation.samples=1",
    "checkpoint.keep_clients=true",
]
SITES = ["method.temperature=0.1", "method.delta=1", "local=ivon", "local.lr=0.03", "local.hess_init=0.1"]
METHODS = {
    "pvi": [*SITES, "method.damping=0.1"],
    "bayes_admm": [*SITES, "method.rho=0.1", "method.damping=1"],
    "federated_admm": ["local=sgd", "local.lr=0.1", "method.rho=1"],
}
REGION = re.compile(r"(<!-- leaving -->\n).*?(<!-- end -->)", re.DOTALL)


class Row(NamedTuple):
    method: str
    seed: int
    rounds: str
    accuracy: float
    own: float  # accuracy on the client's examples
    membership: float
    same: int  # rounds in which the run without it from the start is as accurate for the first time; 0: never is


def path() -> Path:
    return folder("reproduce") / "leaving.json"


def read(results: Path) -> list[Row]:
    return [Row(*row) for row in json.loads(results.read_text())] if results.is_file() else []


def run(results: Path) -> Iterator[Row]:
    """What is missing; every method and seed is kept as soon as it is done."""
    exchange, rows = Exchange.connect(torch.device("cpu")), read(results)
    for method in METHODS:
        for seed in SEEDS:
            if any((row.method, row.seed) == (method, seed) for row in rows):
                continue
            found = list(_of(method, seed, exchange))
            rows += found
            write_text(results, "[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
            yield from found


def _of(method: str, seed: int, exchange: Exchange) -> Iterator[Row]:
    words = [f"method={method}", f"seed={seed}", *COMMON, *METHODS[method]]
    config = configuration.load("fmnist_10p_homog", words)
    task = make_task(config, exchange.device)
    with tempfile.TemporaryDirectory() as scratch:
        whole, never = Path(scratch) / "whole", Path(scratch) / "never"
        Job(config, whole, exchange, exchange.device, quiet=True).run(False)
        alone = configuration.load("fmnist_10p_homog", [*words, f"federation.without=[{CLIENT}]"])
        Job(alone, never, exchange, exchange.device, quiet=True).run(False)
        by_round = [record["accuracy"] for record in read_metrics(never / "metrics.jsonl")]
        folders = {"with it": whole}
        for more in MORE:
            out = folders[f"forgotten, {more} more"] = Path(scratch) / f"left{more}"
            after = members.forget(whole, members.configuration(whole), str(CLIENT), more, out)
            Job(after, out, exchange, exchange.device, quiet=True).run(True)
        for name, one in {**folders, "never with it": never}.items():
            accuracy, own, membership = judged(Run(one), task)
            same = next((number for number, value in enumerate(by_round, 1) if value >= accuracy), 0)
            yield Row(method, seed, name, accuracy, own, membership, same)


def judged(run: Run, task: Task) -> tuple[float, float, float]:
    """Accuracy on test points, on the client's examples, and how well they are told apart."""
    theirs = task.data.train.take(task.shards.of_client(CLIENT))
    scores = []
    for examples in (task.data.test, theirs):
        with torch.no_grad():
            outputs = run.model(task.data.prepare(examples.inputs, task.dtype))
        right = (outputs.argmax(1) == examples.targets).double().mean()
        scores.append((float(right), task.objective.loss(outputs, examples.targets)))
    (accuracy, others), (own, losses) = scores
    return accuracy, own, told_apart(losses, others)


def told_apart(inside: Tensor, outside: Tensor) -> float:
    """Share of pairs in which the inner one is smaller; alike ones count half."""
    ranked = outside.sort().values
    above = len(ranked) - torch.searchsorted(ranked, inside, right=True)
    alike = torch.searchsorted(ranked, inside, right=True) - torch.searchsorted(ranked, inside)
    return float((above + alike / 2).double().mean() / len(ranked))


def markdown(rows: Sequence[Row]) -> str:
    lines = ["| | rounds | accuracy | on its data | membership | as accurate from the start |", "|" + "---|" * 6]
    for method, name in dict.fromkeys((row.method, row.rounds) for row in rows):
        own = [row for row in rows if (row.method, row.rounds) == (method, name)]
        cells = [_spread([getattr(row, what) for row in own]) for what in ("accuracy", "own", "membership")]
        same = ", ".join(str(row.same) if row.same else f"not in {ROUNDS}" for row in own)
        lines.append("| " + " | ".join([method, name, *cells, same]) + " |")
    return "\n".join(lines)


def filled(text: str, rows: Sequence[Row]) -> str:
    return REGION.sub(lambda found: f"{found[1]}{markdown(rows)}\n{found[2]}", text)


def _spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")
