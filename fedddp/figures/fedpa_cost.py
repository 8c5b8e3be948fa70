"""FedPA's Table 1: what posterior averaging adds to a client's work, over the number of parameters.

A client's least squares by SGD; the same with ten samples averaged on the way; and the change from those samples, by
the recurrence and by solving with the explicit covariance.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import Tensor, nn

from fedddp.core.params import Layout
from fedddp.core.rng import stream
from fedddp.core.task import Task
from fedddp.figures._least_squares import cohort, least_squares
from fedddp.local import iasg, sgd
from fedddp.methods.fedpa import delta
from fedddp.records.pictures import COLOURS, STYLE
from fedddp.runs.rank import keep_memory

EXAMPLES, BATCH, EPOCHS, SAMPLES, SHRINKAGE = 200, 10, 25, 10, 0.1  # 500 steps, as in the paper
LARGEST_SOLVE = 3000  # parameters whose covariance is still solved with


class Cost(NamedTuple):
    """Seconds of processor time, the medians over turns."""

    average: float  # fedavg's client step
    sample: float  # the same with samples
    recurrence: float
    solve: float  # NaN where it was not tried
    overhead: float  # of samples and recurrence, as a share of fedavg's step in the same turn


def cost(dims: int, turns: int = 5) -> Cost:
    """All take turns, since a machine's speed changes from one second to the next: only neighbours compare."""
    task = problem(dims)
    settings = {"lr": 0.1, "epochs": EPOCHS, "batch_size": BATCH}
    plain = sgd.Solver(**settings)  # type: ignore[arg-type]
    sampler = iasg.Solver(**settings, steps_per_sample=EPOCHS * EXAMPLES // BATCH // SAMPLES)  # type: ignore[arg-type]
    with torch.no_grad(), one_thread():
        _, samples = sampler.sample(cohort(task, 0), task.initial, sampler.memory(task, 1))
        own = samples.theta[0]
        works: list[Callable[[], object]] = [
            lambda: plain.minimise(cohort(task, 0), task.initial, plain.memory(task, 1)),
            lambda: sampler.sample(cohort(task, 0), task.initial, sampler.memory(task, 1)),
            lambda: delta(task.initial, own, SHRINKAGE),
            *[lambda: solved(task.initial, own)] * (dims <= LARGEST_SOLVE),
        ]
        taken = torch.tensor([[_seconds(work) for work in works] for _ in range(turns)])  # [turns, works]
    average, sample, recurrence, *solve = (float(column.median()) for column in taken.T)
    overhead = (taken[:, 1] + taken[:, 2]) / taken[:, 0] - 1
    return Cost(average, sample, recurrence, solve[0] if solve else float("nan"), float(overhead.median()))


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


@contextmanager
def one_thread() -> Iterator[None]:
    """Threads that wait for each other would count as work."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _seconds(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def draw(out: Path, dims: tuple[int, ...] = (100, 1000, 10_000, 100_000), turns: int = 9) -> None:
    """The figure as PNG, SVG or PDF, by the name of `out`, with what the samples add to a client's step."""
    keep_memory()  # as runs do: otherwise a step's time is that of fresh pages
    found = [cost(size, turns) for size in dims]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.6, 3), layout="constrained")
        axes = figure.subplots()
        names = ("client step of fedavg", "with samples", "change by recurrence", "change by solving")
        for name, colour, times in zip(names, COLOURS, zip(*(each[:4] for each in found), strict=True), strict=False):
            axes.plot(dims, [1000 * seconds for seconds in times], "o-", color=colour, label=name)
        for size, each in zip(dims, found, strict=True):
            place = (size, 1300 * each.sample)  # just above the point
            axes.annotate(f"{100 * each.overhead:+.0f} %", place, ha="center")
        axes.set(xscale="log", yscale="log", xlabel="parameters", ylabel="milliseconds")
        axes.set_ylim(top=3000 * max(each.sample for each in found))
        axes.legend()
        figure.savefig(out, dpi=150)
