"""Ridge regression over digit pairs ("Federated ADMM from Bayesian Duality", Fig. 3b): one round against many.

Five clients with two digits each; the digit is to be read off its pixels by a linear model. Distance of the server's
mean to the pooled solution over rounds: BayesADMM with a full covariance and rho = 1/K is there after one round,
federated ADMM (with the best rho of a coarse grid) and BregmanADMM are not.
"""

from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure

from fedddp.core.objective import SquaredError
from fedddp.core.task import Task
from fedddp.figures._duality import Newton, digit_pairs, linear_task, trace
from fedddp.figures._least_squares import normal
from fedddp.local import von
from fedddp.methods import bayes_admm, bregman_admm, federated_admm
from fedddp.records.pictures import COLOURS, STYLE

DELTA = 1.0
FLOOR = 1e-16  # what is as good as 0 on a logarithmic axis


def methods(clients: int) -> dict[str, tuple[Any, Any]]:
    """Each method with a client solver that is exact on quadratics."""
    shared: dict[str, Any] = {"covariance": "full", "delta": DELTA}
    return {
        "ADMM": (federated_admm.Method(rho=100.0, delta=DELTA), Newton(steps=2)),  # the best of 1 to 300
        "BregmanADMM": (bregman_admm.Method(rho=1.0, damping=0.001, **shared), von.Solver(epochs=1)),
        "BayesADMM": (bayes_admm.Method(rho=1 / clients, **shared), von.Solver(epochs=1)),
    }


def problem(source: str, count: int, side: int) -> Task:
    """Digits as numbers around 0, so that no offset is left to explain."""
    inputs, targets = digit_pairs(source, count, side)
    return linear_task(inputs, [(t - 4.5).double() for t in targets], outputs=1, classes=0, objective=SquaredError())


def curves(task: Task, rounds: int) -> dict[str, list[float]]:
    """Relative distance of the server's mean to the pooled solution."""
    gram, shift = normal(task, range(task.num_clients))
    best = torch.linalg.solve(gram + DELTA * torch.eye(len(gram), dtype=torch.float64), shift)
    found: dict[str, list[float]] = {}
    for name, (method, local) in methods(task.num_clients).items():
        states = [server for server, _ in trace(method, local, task, rounds)]
        found[name] = [float((server.theta - best).norm() / best.norm()) for server in states]
    return found


def draw(out: Path, source: str = "mnist", count: int = 1000, side: int = 5, rounds: int = 30) -> None:
    """The figure as PNG, SVG or PDF, by the name of `out`."""
    found = curves(problem(source, count, side), rounds)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.6, 3.2), layout="constrained")
        axes: Any = figure.subplots()
        for place, (name, distances) in enumerate(found.items(), start=1):
            axes.plot([max(d, FLOOR) for d in distances], color=COLOURS[place], marker=".", label=name)
        axes.set(yscale="log", xlabel="round", ylabel="distance to the pooled solution")
        axes.legend()
        figure.savefig(out, dpi=150)
