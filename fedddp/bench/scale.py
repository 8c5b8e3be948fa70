"""100,000 clients of which 200 take part in a round: what planning costs, whether memory grows, and who does how much.

Strong scaling keeps the federation and adds ranks; weak scaling gives each rank 25,000 clients of its own. Work (client
steps and examples), imbalance (a round's busiest rank over its mean) and bytes are counted, because more ranks than
cores say nothing about time. Methods: one without client memory, and one whose rows lie in a mapped file.
"""

import argparse
import statistics
from functools import partial
from typing import Any

import torch

from fedddp.bench.memory import resident
from fedddp.config import loading as configuration
from fedddp.exchange.group import Exchange
from fedddp.jobs import here
from fedddp.rounds.federate import Federation
from fedddp.rounds.report import Report
from fedddp.runs.build import make_federation, make_task
from fedddp.runs.rank import keep_memory

METHODS = ("fedavg", "scaffold")
RANKS = (1, 2, 4, 8)
EARLY = 5  # rounds until everything that is made once was made
MB = 1e6


def call(arguments: argparse.Namespace, words: list[str]) -> int:
    """Both kinds of scaling on 1, 2, 4 and 8 ranks; `fedddp bench scale --rounds 50` also shows memory over rounds."""
    for ranks in RANKS:
        code = here.start(partial(_rank, max(arguments.rounds, EARLY), words), ranks)
        if code:
            return code
    return 0


def _rank(rounds: int, words: list[str]) -> int:
    torch.set_num_threads(1)
    keep_memory()
    exchange = Exchange.connect(torch.device("cpu"))
    for kind in ("strong", "weak"):
        for method in METHODS:
            row = measure(kind, method, words, rounds, exchange)
            if exchange.rank == 0:
                print(line(row), flush=True)
    exchange.close()
    return 0


def measure(kind: str, method: str, words: list[str], rounds: int, exchange: Exchange) -> dict[str, Any]:
    clients = 100_000 if kind == "strong" else 25_000 * exchange.world_size
    settings = [f"method={method}", f"split.clients={clients}", *words]
    config = configuration.load("scale_100k", settings)
    federation = make_federation(config, make_task(config, exchange.device), exchange)
    server, reports, held = config.method.init_server(federation.task), [], []
    for number in range(rounds):
        server, report = federation.round(server, number)
        reports.append(report)
        held.append(resident())
    shares = {what: [_shares(report, what, federation) for report in reports] for what in ("steps", "examples")}
    memory = exchange.gather([held[EARLY - 1], held[-1], len(federation.store.ids)])
    return {
        "kind": kind,
        "method": method,
        "ranks": exchange.world_size,
        "clients": federation.task.num_clients,
        "active": reports[0].active,
        "planning": statistics.median(r.seconds["plan"] / sum(r.seconds.values()) for r in reports[1:]),
        "bytes": reports[-1].bytes,
        "steps": _mean(shares["steps"]),
        "examples": _mean(shares["examples"]),
        "imbalance": statistics.mean(max(row) * len(row) / sum(row) for row in shares["steps"]),
        "hosted": [row[2] for row in memory],
        "memory": [[row[0] for row in memory], [row[1] for row in memory]],
        "rounds": rounds,
    }


def _shares(report: Report, what: str, federation: Federation) -> list[float]:
    """Of each rank in a round."""
    done = [0.0] * federation.plan.ranks
    for cohort in report.cohorts:
        examples = int(federation.task.num_examples[list(cohort.ids)].sum())
        done[cohort.rank] += cohort.work.steps if what == "steps" else examples
    return done


def _mean(rows: list[list[float]]) -> list[float]:
    return [statistics.mean(column) for column in zip(*rows, strict=True)]


def line(row: dict[str, Any]) -> str:
    early, late = (max(ranks) / MB for ranks in row["memory"])
    return (
        f"{row['kind']:<6} {row['method']:<8} {row['ranks']} ranks  {row['active']} of {row['clients']:,} clients  "
        f"planning {row['planning']:.1%}  steps per rank {_range(row['steps'])} (imbalance {row['imbalance']:.2f})  "
        f"examples {_range(row['examples'])}  hosted {_range(row['hosted'])}  {row['bytes']:,} bytes per rank  "
        f"memory {early:.1f} MB after {EARLY} rounds, {late:.1f} after {row['rounds']}"
    )


def _range(numbers: list[float]) -> str:
    low, high = f"{min(numbers):.0f}", f"{max(numbers):.0f}"
    return low if low == high else f"{low}-{high}"
