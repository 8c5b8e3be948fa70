"""What judging every client costs: the server's model on all parts of the test set, in an evaluated round.

100 unequal clients of Fashion-MNIST, with one local epoch: the quicker the round, the more an evaluation weighs. A
round is evaluated without and with the clients' parts in turn, and what the second takes more is compared with the
round and its evaluation without. Seconds are of a processor; medians over rounds, after one that warms up.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch

from fedddp.config import loading as configuration
from fedddp.core.check import check
from fedddp.evaluation.evaluators import make_evaluator
from fedddp.exchange.group import Exchange
from fedddp.runs.build import make_federation, make_task
from fedddp.runs.rank import keep_memory

CPU = torch.device("cpu")
TASK = "fmnist_heterog100"
SMALL = ["data.fraction=0.1", "split.dealing=exact", "split.minimum=5", "model.hidden=[16]"]
CASES = {
    "fedavg": ["method=fedavg", "local.epochs=1"],
    "bayes_admm": ["method=bayes_admm", "local.epochs=1", "evaluation.samples=8"],
    "small": ["method=fedavg", "local.epochs=1", *SMALL],  # a tenth of the data, and 13,000 parameters
}


@dataclass(frozen=True)
class Cost:
    """Seconds of a processor."""

    case: str
    clients: int
    round: float  # of training
    without: float  # an evaluation of the test set as a whole
    parts: float  # what the clients' parts of it add

    @property
    def share(self) -> float:
        return self.parts / (self.round + self.without)


def measure(case: str, words: Sequence[str], rounds: int, exchange: Exchange) -> Cost:
    config = configuration.load(TASK, [*CASES[case], "evaluation.clients=server", *words])
    federation = make_federation(config, make_task(config, CPU), exchange)
    each, server = make_evaluator(config, federation), federation.method.init_server(federation.task)
    whole = make_evaluator(configuration.load(TASK, [*CASES[case], *words]), federation)
    taken: list[list[float]] = []
    for number in range(rounds + 1):
        spent, (server, report) = _timed(federation.round, server, number)
        apart = [_timed(evaluator, server, number + 1, report) for evaluator in (whole, each)]
        plain, told = (found.metrics for _, found in apart)
        assert plain.items() <= told.items(), "the same numbers of the whole"
        taken.append([spent, *(seconds for seconds, _ in apart)])
    spent, without, with_parts = (median(column) for column in zip(*taken[1:], strict=True))
    return Cost(case, federation.task.num_clients, spent, without, with_parts - without)


def _timed(do: Callable[..., Any], *given: Any) -> tuple[float, Any]:
    start = time.process_time()
    found = do(*given)
    return time.process_time() - start, found


def call(arguments: argparse.Namespace, words: list[str]) -> int:
    """`fedddp bench clients [case=NAME] [key=value...]`: a row for each; --rounds of each."""
    torch.set_num_threads(1)
    keep_memory()
    exchange = Exchange.connect(CPU)
    chosen = [word.partition("=")[2] for word in words if word.startswith("case=")] or list(CASES)
    rest = [word for word in words if not word.startswith("case=")]
    costs = []
    for case in chosen:
        check("case", case, case in CASES, " or ".join(CASES))
        costs.append(measure(case, rest, arguments.rounds, exchange))
        print(line(costs[-1]), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps([asdict(cost) | {"share": cost.share} for cost in costs], indent=2) + "\n")
    exchange.close()
    return 0


def line(cost: Cost) -> str:
    parts = f"{cost.clients} parts +{cost.parts:.4f} s, {cost.share:.2%} of an evaluated round"
    return f"{cost.case:<12} round {cost.round:.3f} s  evaluation {cost.without:.4f} s  {parts}"
