"""FedPA's Fig. 1: two clients with quadratic losses in the plane, where fedavg stalls and fedpa comes close.

Left the clients' losses and optima, in the middle federated averaging with more and more local steps, on the right
posterior averaging with more and more samples: the distance to the pooled optimum, over seeds (starts and batches).
"""

from collections.abc import Mapping
from math import ceil, cos, sin
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedddp.core.rng import stream
from fedddp.core.task import Task
from fedddp.exchange.group import Exchange
from fedddp.figures._least_squares import alone, least_squares, normal, path
from fedddp.local import iasg, sgd
from fedddp.methods import fedavg, fedpa
from fedddp.records.pictures import COLOURS, STYLE

EXAMPLES = 2000  # of each client
CURVED, FLAT = 0.01, 0.0025  # of a client's mean loss: the posterior's deviations are of the order of one
ANGLES, OPTIMA = (0.4, 1.9), ((20.0, 10.0), (-10.0, 20.0))
RATE = 1 / CURVED  # local learning rate
LENGTH, BURN_IN, BATCH = 25, 30, 10  # steps per sample, steps before the first, examples per step


def problem(seed: int) -> Task:
    """The same two clients for every seed, from another start and in another order of batches."""
    generator = stream("fedpa toy")
    clients = []
    for angle, optimum in zip(ANGLES, OPTIMA, strict=True):
        turn = torch.tensor([[cos(angle), -sin(angle)], [sin(angle), cos(angle)]], dtype=torch.float64)
        x = torch.randn(EXAMPLES, 2, generator=generator, dtype=torch.float64)
        x = x * torch.tensor([CURVED, FLAT], dtype=torch.float64).sqrt() @ turn.T
        noise = torch.randn(EXAMPLES, generator=generator, dtype=torch.float64)
        clients.append((x, x @ torch.tensor(optimum, dtype=torch.float64) + noise))
    start = 25 * torch.randn(2, generator=stream("fedpa toy start", seed), dtype=torch.float64)
    return least_squares(clients, start, seed)


def averaging(steps: int) -> tuple[Any, Any]:
    """fedavg with a number of local steps that divides an epoch, or is a multiple of one."""
    batch = max(BATCH, EXAMPLES // steps)
    return fedavg.Method(), sgd.Solver(lr=RATE, epochs=ceil(steps * batch / EXAMPLES), batch_size=batch)


def posterior(samples: int) -> tuple[Any, Any]:
    """fedpa with a number of samples for each client and round."""
    epochs = ceil((BURN_IN + samples * LENGTH) * BATCH / EXAMPLES)
    local = iasg.Solver(lr=RATE, epochs=epochs, batch_size=BATCH, steps_per_sample=LENGTH, samples=samples)
    return fedpa.Method(shrinkage=1.0, lr=0.3), local


def distances(run: tuple[Any, Any], exchange: Exchange, seeds: int, rounds: int) -> Tensor:
    """To the pooled optimum, [seeds, rounds + 1]."""
    tasks = [problem(seed) for seed in range(seeds)]
    best = torch.linalg.solve(*normal(tasks[0], (0, 1)))
    return torch.stack([(path(*run, task, exchange, rounds) - best).norm(dim=1) for task in tasks])


def draw(
    out: Path,
    seeds: int = 5,
    rounds: int = 30,
    steps: tuple[int, ...] = (1, 10, 100),
    samples: tuple[int, ...] = (10, 100),
    exchange: Exchange | None = None,
) -> None:
    """The figure as PNG, SVG or PDF, by the name of `out`."""
    with alone(exchange) as world:
        averaged = {f"fedavg, {n} step{'s' * (n > 1)}": distances(averaging(n), world, seeds, rounds) for n in steps}
        sampled = {f"fedpa, {n} samples": distances(posterior(n), world, seeds, rounds) for n in samples}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 3.2), layout="constrained")
        left, middle, right = figure.subplots(1, 3)
        _losses(left)
        _curves(middle, averaged, 0)
        _curves(right, sampled, len(averaged))
        for axes in (middle, right):
            axes.set_ylim(0.1, 300)  # one step on all data goes on below
        figure.savefig(out, dpi=150)


def _losses(axes: Any) -> None:
    """Contours of both clients' losses, their optima, and that of all data."""
    task = problem(0)
    grid = np.stack(np.meshgrid(np.linspace(-45, 45, 160), np.linspace(-25, 50, 160)), axis=-1)
    for client, colour in enumerate(COLOURS[:2]):
        precision, shift = (part.numpy() for part in normal(task, (client,)))
        mean = np.linalg.solve(precision, shift)
        away = grid - mean
        height = np.einsum("...i,ij,...j->...", away, precision, away) / EXAMPLES
        axes.contour(grid[..., 0], grid[..., 1], height, levels=[0.1, 0.5, 1.2, 2.4, 4], colors=colour, linewidths=0.8)
        axes.plot(*mean, "o", color=colour, label=f"optimum of client {client + 1}")
    axes.plot(*torch.linalg.solve(*normal(task, (0, 1))).tolist(), "k*", markersize=10, label="optimum of all data")
    axes.legend(loc="lower left")
    axes.set_title("the clients' losses")


def _curves(axes: Any, curves: Mapping[str, Tensor], place: int) -> None:
    """The mean over seeds, and all that lies between the least and the largest."""
    for i, (name, curve) in enumerate(curves.items()):
        rounds, colour = range(curve.shape[1]), COLOURS[(place + i) % len(COLOURS)]
        axes.plot(rounds, curve.mean(0), color=colour, label=name)
        axes.fill_between(rounds, curve.amin(0), curve.amax(0), color=colour, alpha=0.15, linewidth=0)
    axes.set(yscale="log", xlabel="round", ylabel="distance to the optimum")
    axes.legend(loc="upper right")
