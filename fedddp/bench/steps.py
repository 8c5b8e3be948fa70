"""What a client's step costs with each solver, in turn: workload A's model, batch 32, ten clients of 600 examples.

`private` is a step with clipped gradients of examples and noise (privacy.level=example), `gaussian` its noise alone. A
step is all that happens for one batch of one client: gathering it, the gradient, and the solver's own work. `noise`
is IVON's draw and sample alone, which is part of its step.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from fedddp.bench.workloads import COMMON, MLP
from fedddp.clients.cohort import Cohort
from fedddp.clients.keyed_noise import Keyed
from fedddp.clients.noise import Quantile
from fedddp.clients.private import Guard, guarded
from fedddp.config import loading as configuration
from fedddp.core.gaussian import diagonal
from fedddp.exchange.discrete import KEY
from fedddp.exchange.group import Exchange
from fedddp.local import adam, ivon, sgd
from fedddp.runs.build import make_federation, make_task

EVEN = ["data.fraction=0.1", "split.name=iid", "split.clients=10", "method=fedavg"]
TURNS = 15
SOLVERS = ("sgd", "adam", "ivon")


def call(words: list[str], exchange: Exchange) -> list[dict[str, Any]]:
    settings = [w for w in [*COMMON, *MLP] if not w.startswith("split.")]
    config = configuration.load(None, [*settings, *EVEN, *words])
    task = make_task(config, exchange.device)
    federation = make_federation(config, task, exchange)
    width = min(federation.plan.width, task.num_clients)
    ids = tuple(range(width))
    guard = Guard(clip=1.0, noise=1.0)
    row = measure(*(made(ids, 0, task, federation.oracle) for made in (Cohort, guarded(guard))))
    if exchange.rank == 0:
        print(line(row), flush=True)
    return [row]


def measure(cohort: Cohort, private: Cohort) -> dict[str, Any]:
    """Milliseconds of processor time per client and step: medians over turns, as of the ratios."""
    fits = _fits(cohort) | {f"private {name}": fit for name, fit in _fits(private).items() if name != "noise"}
    size, rows = torch.zeros(len(cohort), cohort.task.layout.numel), int(cohort.steps(1, 32).max())
    noise = Keyed([bytes([row]) * KEY for row in range(len(cohort))])
    fits["gaussian"] = lambda: _repeat(rows, lambda: noise.add(size, [1.0] * len(cohort)))
    steps = int(cohort.steps(1, 32).sum())
    taken: dict[str, list[float]] = {name: [] for name in fits}
    for turn in range(TURNS):
        for name, fit in fits.items():
            start = time.process_time()
            fit()
            if turn:  # the first warms up
                taken[name].append((time.process_time() - start) / steps * 1e3)
    found = {name: statistics.median(values) for name, values in taken.items()}

    def ratio(one: str, other: str) -> float:
        return statistics.median(a / b for a, b in zip(taken[one], taken[other], strict=True))

    ratios = {f"private_{name}_ratio": ratio(f"private {name}", name) for name in SOLVERS}
    return {"workload": "steps", "width": len(cohort), **found, "ivon_to_adam": ratio("ivon", "adam"), **ratios}


def _repeat(times: int, work: Callable[[], None]) -> None:
    for _ in range(times):
        work()


def _fits(cohort: Cohort) -> dict[str, Callable[[], object]]:
    task, rows = cohort.task, len(cohort)
    start = diagonal.natural(task.initial, 1.0)
    cavity = start.expand(rows, -1, -1).contiguous()
    by_sgd, by_adam, by_ivon = sgd.Solver(lr=0.1), adam.Solver(lr=1e-3), ivon.Solver(lr=1e-4, keep=False)
    keys, around = torch.tensor(cohort.keys("noise")), [torch.ones_like(cavity[:, 0]) for _ in range(4)]

    def draw() -> None:
        for number in range(int(cohort.steps(1, 32).max())):
            Quantile(keys, number).perturb(*around)

    return {
        "sgd": lambda: by_sgd.minimise(cohort, task.initial, by_sgd.memory(task, rows)),
        "adam": lambda: by_adam.minimise(cohort, task.initial, by_adam.memory(task, rows)),
        "ivon": lambda: by_ivon.fit(cohort, cavity, 1e-3, start, by_ivon.memory(task, rows), diagonal),
        "noise": draw,
    }


def line(row: dict[str, Any]) -> str:
    cost = ", ".join(f"{name} {row[name]:.3f}" for name in ("sgd", "adam", "ivon", "noise"))
    share = row["noise"] / row["ivon"]
    plain = f"steps    width {row['width']}: {cost} ms; ivon/adam {row['ivon_to_adam']:.2f}x; noise {share:.0%} of ivon"
    private = ", ".join(f"{n} {row[f'private {n}']:.3f} ({row[f'private_{n}_ratio']:.2f}x)" for n in SOLVERS)
    return f"{plain}\n         private: {private} ms, of which noise {row['gaussian']:.3f}"
