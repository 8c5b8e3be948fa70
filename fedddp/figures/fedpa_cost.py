"""FedPA's Table 1: what posterior averaging adds to a client's work, over the number of parameters.

A client's least squares by SGD; the same with ten samples averaged on the way; and the change from those samples, by
the recurrence and by solving with the explicit covariance.
"""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from fedddp.figures._least_squares import cohort, least_squares
from fedddp.local import iasg, sgd
from fedddp.methods.fedpa import delta
from fedddp.params import Layout
from fedddp.pictures import COLOURS, STYLE
from fedddp.rng import stream
from fedddp.task import Task

EXAMPLES, BATCH, EPOCHS, SAMPLES, SHRINKAGE = 200, 10, 25, 10, 0.1  # 500 steps, as in the paper
LARGEST_SOLVE = 3000  # parameters whose covariance is still solved with


class Cost(NamedTuple):
    """Seconds of processor time, the least of several runs."""

    average: float  # fedavg's client step
    sample: float  # the same with samples
    recurrence: float
    solve: float  # NaN where it was not tried


def cost(dims: int, repeats: int = 5) -> Cost:
    task = problem(dims)
    settings = {"lr": 0.1, "epochs": EPOCHS, "batch_size": BATCH}
    plain = sgd.Solver(**settings)  # type: ignore[arg-type]
    sampler = iasg.Solver(**settings, steps_per_sample=EPOCHS * EXAMPLES // BATCH // SAMPLES)  # type: ignore[arg-type]
    with torch.no_grad():
        _, samples = sampler.sample(cohort(task, 0), task.initial, sampler.memory(task, 1))
        own = samples.theta[0]
        return Cost(
            _least(lambda: plain.minimise(cohort(task, 0), task.initial, plain.memory(task, 1)), repeats),
            _least(lambda: sampler.sample(cohort(task, 0), task.initial, sampler.memory(task, 1)), repeats),
            _least(lambda: delta(task.initial, own, SHRINKAGE), repeats),
            _least(lambda: solved(task.initial, own), repeats) if dims <= LARGEST_SOLVE else float("nan"),
        )


def problem(dims: int) -> Task:
    """One client, in float32."""
    generator = stream("fedpa cost", dims)
    x = torch.randn(EXAMPLES, dims, generator=generator) / dims**0.5
    task = least_squares([(x, torch.randn(EXAMPLES, generator=generator))], torch.zeros(dims), seed=0)
    module = nn.Linear(dims, 1, bias=False)
    return replace(task, module=module, layout=Layout.of(module), dtype=torch.float32)


def solved(theta: Tensor, samples: Tensor) -> Tensor:
    """The same change with matrices."""
    keep = 1 / (1 + (len(samples) - 1) * SHRINKAGE)
    covariance = keep * torch.eye(len(theta)) + (1 - keep) * samples.T.cov()
    return torch.linalg.solve(covariance, theta - samples.mean(0))


def _least(work: Callable[[], object], repeats: int) -> float:
    taken = []
    for _ in range(repeats):
        start = time.process_time()
        work()
        taken.append(time.process_time() - start)
    return min(taken)


def draw(out: Path, dims: tuple[int, ...] = (100, 1000, 10_000, 100_000), repeats: int = 5) -> None:
    """The figure as PNG, SVG or PDF, by the name of `out`; more than one thread makes it another figure."""
    found = [cost(size, repeats) for size in dims]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.6, 3), layout="constrained")
        axes = figure.subplots()
        names = ("client step of fedavg", "with samples", "change by recurrence", "change by solving")
        for name, colour, times in zip(names, COLOURS, zip(*found, strict=True), strict=False):
            axes.plot(dims, [1000 * seconds for seconds in times], "o-", color=colour, label=name)
        axes.set(xscale="log", yscale="log", xlabel="parameters", ylabel="milliseconds")
        axes.legend()
        figure.savefig(out, dpi=150)
