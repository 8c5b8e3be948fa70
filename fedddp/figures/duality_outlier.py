"""An outlier ("Federated ADMM from Bayesian Duality", Fig. 4): whose decision boundary recovers from it, and when.

Two clients with two classes in the plane; client 1 has a point of one class deep in the other. Decision boundaries of
the server and of both clients after each of five rounds, above for federated ADMM, below for BayesADMM with a full
covariance and expectations at the mean; grey lines are samples of the posterior after the first round.
"""

from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedddp.core.gaussian import full
from fedddp.core.objective import Binary
from fedddp.core.rng import stream
from fedddp.core.task import Task
from fedddp.figures._duality import Newton, linear_task, trace
from fedddp.local import von
from fedddp.methods import bayes_admm, federated_admm
from fedddp.records.pictures import STYLE

DELTA, RHO = 0.2, 0.2  # rho as published
OUTLIER = (3.2, 3.4)


def problem() -> Task:
    """Client 1 has few points and the outlier, client 2 has more; a constant stands for the offset."""
    generator = stream("outlier")
    inputs, targets = [], []
    for count, centre in ((6, 1.6), (9, 1.4)):
        cloud = torch.randn(2 * count, 2, generator=generator, dtype=torch.float64) * 0.6
        label = torch.arange(2 * count) % 2
        inputs.append(cloud + centre * (2 * label - 1).unsqueeze(1))
        targets.append(label)
    inputs[0] = torch.cat([inputs[0], torch.tensor([OUTLIER], dtype=torch.float64)])
    targets[0] = torch.cat([targets[0], torch.zeros(1, dtype=torch.long)])
    inputs = [torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], dim=1) for x in inputs]
    return linear_task(inputs, targets, outputs=1, classes=2, objective=Binary())


def paths(task: Task, rounds: int) -> dict[str, tuple[Tensor, Tensor]]:
    """For each method: natural parameters or points of the server and both clients, [rounds, 3, ...]; and the means."""
    admm = federated_admm.Method(rho=RHO, delta=DELTA)
    bayes = bayes_admm.Method(rho=RHO, delta=DELTA, covariance="full")
    order = task.num_examples.argsort(descending=True, stable=True).argsort()  # cohorts are sorted by size
    points, posteriors = [], []
    for server, message in list(trace(admm, Newton(), task, rounds))[1:]:
        points.append(torch.cat([server.theta[None], message["theta"].value[order]]))
    for server, message in list(trace(bayes, von.Solver(lr=0.5, tolerance=1e-6), task, rounds))[1:]:
        posteriors.append(torch.cat([server.lam[None], message["lam"].value[order]]))
    lam = torch.stack(posteriors)
    return {"ADMM": (torch.stack(points), torch.stack(points)), "BayesADMM": (lam, full.mean(lam))}


def draw(out: Path, rounds: int = 5) -> None:
    """The figure as PNG, SVG or PDF, by the name of `out`."""
    task = problem()
    with matplotlib.rc_context(STYLE | {"axes.grid": False}):
        figure = Figure(figsize=(8.4, 5.4), layout="constrained")
        grid = figure.subplots(2, 3, sharex=True, sharey=True)
        for row, (name, (states, means)) in zip(grid, paths(task, rounds).items(), strict=True):
            for column, (axes, who) in enumerate(zip(row, ("server", "client 1", "client 2"), strict=True)):
                if name == "BayesADMM":
                    _samples(axes, states[0, column])
                _points(axes, task, column)
                for number, theta in enumerate(means[:, column]):
                    shade = matplotlib.colormaps["viridis"](number / max(rounds - 1, 1) * 0.9)
                    _boundary(axes, theta, color=shade, label=f"round {number + 1}", linewidth=1.6)
                axes.set(title=f"{name}, {who}", xlim=(-4.5, 5), ylim=(-4.5, 5))
        grid[0, 2].legend(loc="upper right")
        figure.savefig(out, dpi=150)


def _boundary(axes: Any, theta: Tensor, **style: Any) -> None:
    """The line w·x + b = 0."""
    across, up, offset = theta.tolist()
    norm = across**2 + up**2
    foot = (-offset * across / norm, -offset * up / norm)
    axes.axline(foot, (foot[0] - up, foot[1] + across), **style)


def _samples(axes: Any, lam: Tensor, count: int = 20) -> None:
    generator = stream("boundaries")
    for _ in range(count):
        theta = full.sample(lam, torch.randn(3, generator=generator, dtype=torch.float64))
        _boundary(axes, theta, color="#b9c0c8", linewidth=0.6, zorder=0)


def _points(axes: Any, task: Task, column: int) -> None:
    """A client's own examples; the server's panel shows everyone's."""
    index = torch.arange(len(task.data.train)) if column == 0 else task.shards.of_client(column - 1)
    inputs, targets = task.data.train.inputs[index], task.data.train.targets[index]
    for label, colour, marker in ((0, "#3b6fb6", "o"), (1, "#c44e52", "s")):
        own = inputs[targets == label]
        axes.scatter(own[:, 0], own[:, 1], s=14, c=colour, marker=marker, zorder=3)
