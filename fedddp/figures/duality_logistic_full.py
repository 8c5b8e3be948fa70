"""Logistic regression over digit pairs with a full covariance: the text's setting of Fig. 3a, in small.

"Federated ADMM from Bayesian Duality" describes this one; its authors' program is diagonal (duality_logistic). Five
clients with two digits each, a weak prior. The variational objective of the server's posterior over rounds, and its
value for the pooled data: damped PVI and BregmanADMM are slower than BayesADMM. PVI, which diverges in the diagonal
setting, does so here only if clients' steps leave their basin, which von's line search prevents. Pictures are averaged
down, so that a covariance is a small matrix; clients take expectations at the mean. BregmanADMM's steps on mu must be
tiny for its precision to stay positive.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedddp.core.gaussian import full
from fedddp.core.objective import CrossEntropy
from fedddp.core.rng import stream
from fedddp.core.task import Task
from fedddp.figures._duality import digit_pairs, linear_task, trace
from fedddp.figures._least_squares import cohort
from fedddp.local import von
from fedddp.methods import bayes_admm, bregman_admm, pvi
from fedddp.records.pictures import COLOURS, STYLE

DELTA = 0.001
LOCAL = von.Solver(lr=0.5, epochs=100, tolerance=1e-3)


def methods() -> dict[str, Any]:
    shared: dict[str, Any] = {"covariance": "full", "delta": DELTA}
    return {
        "PVI": pvi.Method(damping=1.0, **shared),
        "PVI, damped": pvi.Method(damping="1/K", **shared),
        "BregmanADMM": bregman_admm.Method(rho=1.0, damping=1e-7, **shared),
        "BayesADMM": bayes_admm.Method(rho=1.0, **shared),
    }


def problem(source: str, count: int, side: int) -> Task:
    return linear_task(*digit_pairs(source, count, side), outputs=10, classes=10, objective=CrossEntropy())


def objective(task: Task, lam: Tensor, noise: Tensor) -> float:
    """Σ_k E_q[f_k] + KL(q || N(0, 1/delta))."""
    points = torch.stack([full.sample(lam, z) for z in noise])
    losses = [
        task.objective.loss(task.outputs(p, task.data.train.inputs), task.data.train.targets).sum() for p in points
    ]
    mean, precision = full.mean(lam), full.precision(lam)
    trace_ = torch.linalg.inv(precision).diagonal().sum()
    logdet = torch.linalg.slogdet(precision).logabsdet - len(mean) * torch.tensor(DELTA).log()
    divergence = 0.5 * (DELTA * (trace_ + mean.square().sum()) - len(mean) + logdet)
    return float(torch.stack(losses).mean() + divergence)


def curves(task: Task, rounds: int, samples: int = 4) -> dict[str, list[float]]:
    """The objective after every round, as far as a method gets: an improper posterior ends a curve."""
    noise = torch.randn(samples, len(task.initial), generator=stream("objective"), dtype=torch.float64)
    noise = torch.cat([noise, -noise])
    found = {"all data": [objective(task, pooled(task, LOCAL), noise)]}
    for name, method in methods().items():
        found[name] = []
        try:
            for server, _ in trace(method, LOCAL, task, rounds):
                if method.improper(server):
                    break
                found[name].append(objective(task, server.lam, noise))
        except ValueError:  # a client's posterior became improper
            continue
    return found


def pooled(task: Task, local: von.Solver) -> Tensor:
    """The posterior of all data in one place, by the same solver."""
    together = cohort(replace(task, shards=task.shards.pooled()), 0)
    prior = full.natural(task.initial, DELTA)
    with torch.no_grad():
        return local.fit(together, prior.unsqueeze(0), 1.0, prior, None, full).lam[0]


def draw(out: Path, source: str = "mnist", count: int = 300, side: int = 5, rounds: int = 15) -> None:
    """The figure as PNG, SVG or PDF, by the name of `out`."""
    found = curves(problem(source, count, side), rounds)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.6, 3.2), layout="constrained")
        _draw(figure.subplots(), found)
        figure.savefig(out, dpi=150)


def _draw(axes: Any, found: Mapping[str, list[float]]) -> None:
    axes.axhline(found["all data"][0], color="black", linestyle="--", linewidth=1, label="all data in one place")
    curves = {name: values for name, values in found.items() if name != "all data"}
    for place, (name, values) in enumerate(curves.items()):
        axes.plot(range(len(values)), values, color=COLOURS[place], marker=".", label=name)
        if len(values) < max(map(len, curves.values())):
            axes.plot(len(values) - 1, values[-1], "x", color=COLOURS[place], markersize=9)  # no posterior after that
    axes.set(yscale="log", xlabel="round", ylabel="variational objective")
    axes.legend()
