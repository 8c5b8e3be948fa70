"""FedLap's and FedDyn's way to their optima ("Connecting Federated ADMM to Bayes", App. D.2): Credit, 1,000 rounds.

Two equal clients, logistic regression, every client solved to convergence. FedLap goes to the pooled minimiser with
weight decay delta, FedDyn to the one without: left, how far the pooled training loss (with its decay) is above the
optimum that each goes to, relative to it; right, the test NLL, with that of both optima as dashes.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedddp.config import loading as configuration
from fedddp.core.task import Task
from fedddp.figures._duality import Newton, trace
from fedddp.figures._least_squares import cohort
from fedddp.methods import feddyn, fedlap
from fedddp.records.pictures import COLOURS, STYLE
from fedddp.runs.build import make_task

DELTAS = (0.1, 1.0, 10.0)  # FedLap's priors
ALPHAS = (0.01, 0.1, 1.0, 10.0)  # FedDyn's penalties, on the sum loss
CLOSE = 0.01  # of an optimum's training loss
FLOOR = 1e-9  # what is as good as 0 on a logarithmic axis


@dataclass
class Way:
    """What a method's server is worth after each round."""

    above: list[float]  # training loss above its optimum's, as a share of that
    nll: list[float]  # of the test points

    def near(self) -> int | None:
        """The round from which on it stays within CLOSE of its optimum."""
        far = [number for number, above in enumerate(self.above) if not above <= CLOSE]
        first = far[-1] + 1 if far else 0
        return first if first < len(self.above) else None


def problem(seed: int = 1) -> Task:
    """Credit in float64 over two equal clients."""
    words = ["split.clients=2", "federation.dtype=float64", f"seed={seed}", f"data.test_seed={seed}"]
    return make_task(configuration.load("credit_homog", words), torch.device("cpu"))


def train_loss(task: Task, theta: Tensor, delta: float) -> float:
    """The pooled loss, a mean over all examples, with the decay ½ delta |theta|² in it."""
    everyone = cohort(task, 0)
    losses = everyone.full_loss(theta.expand(len(everyone), -1))
    return float((losses.sum() + 0.5 * delta * theta.square().sum()) / everyone.num_examples.sum())


def nll_of(task: Task, theta: Tensor) -> float:
    test = task.data.test
    return float(task.objective.loss(task.outputs(theta, test.inputs), test.targets).mean())


def optimum(task: Task, delta: float) -> Tensor:
    """The pooled minimiser with this decay; 0 becomes the least that holds unused inputs in place."""
    pooled = replace(task, shards=task.shards.pooled())
    site = torch.stack([torch.zeros_like(task.initial), torch.full_like(task.initial, max(delta, 1e-9))])
    start = torch.zeros(1, len(task.initial), dtype=task.dtype)
    return Newton(steps=200).minimise(cohort(pooled, 0), start, (), site.unsqueeze(0)).theta[0]


def ways(task: Task, rounds: int) -> dict[str, Way]:
    found = {}
    methods: dict[str, tuple[Any, float]] = {f"FedLap, δ = {d:g}": (fedlap.Method(delta=d), d) for d in DELTAS}
    methods |= {f"FedDyn, α = {a:g}": (feddyn.Method(alpha=a), 0.0) for a in ALPHAS}
    for name, (method, delta) in methods.items():
        best = train_loss(task, optimum(task, delta), delta)
        states = [server.theta for server, _ in trace(method, Newton(tolerance=1e-7), task, rounds)]
        above = [train_loss(task, theta, delta) / best - 1 for theta in states]
        found[name] = Way(above, [nll_of(task, theta) for theta in states])
    return found


def draw(out: Path, rounds: int = 1000) -> None:
    """The figure as PNG, SVG or PDF, by the name of `out`."""
    task = problem()
    draw_ways(out, ways(task, rounds), nll_of(task, optimum(task, 1.0)), nll_of(task, optimum(task, 0.0)))


def draw_ways(out: Path, found: dict[str, Way], decayed: float, plain: float) -> None:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(8, 3.2), layout="constrained")
        left, right = figure.subplots(1, 2)
        for place, (name, way) in enumerate(found.items()):
            style: dict[str, Any] = {
                "color": COLOURS[place],
                "ls": "-" if name.startswith("FedLap") else "--",
                "lw": 1.3,
            }
            near = way.near()
            said = f"{name}: {near} rounds" if near is not None else f"{name}: not within {len(way.nll) - 1}"
            left.plot([max(above, FLOOR) for above in way.above], label=said, **style)
            right.plot(way.nll, **style)
        left.axhline(CLOSE, color="#46505c", lw=0.8)
        left.set(
            xscale="symlog",
            xlim=(0, None),
            yscale="log",
            xlabel="round",
            ylabel="training loss above its optimum's, relative",
        )
        left.legend(fontsize=6.5, title=f"within {CLOSE:.0%} after")
        rounds = len(way.nll) - 1
        for value, name in ((decayed, "optimum, δ = 1"), (plain, "optimum, δ = 0")):
            right.axhline(value, color="#46505c", lw=0.8, ls=":")
            right.annotate(name, (rounds, value), textcoords="offset points", xytext=(-4, 3), fontsize=7, ha="right")
        right.set(xscale="symlog", xlim=(0, None), xlabel="round", ylabel="test NLL", ylim=(0.3, 0.7))
        figure.savefig(out, dpi=150)
