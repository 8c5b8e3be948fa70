"""FedPA's Fig. 4: how many independent posterior samples those of iterate averaging (IASG) are worth.

Random least squares of 500 examples in 10, 100 and 1,000 dimensions (those of fedpa_bias_variance), batches of 10,
as the paper sets them: over burn-in steps (50 steps a sample), steps per sample (100 of burn-in) and learning rates
(100 and 50). Of a path the first samples after its burn-in count. The effective number is Kish's, over weights
exp(-½ |Xθ - y|²/σ²) with the problem's own noise σ, as a share of the samples; in the mean over problems, with a band
of one deviation.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedddp.core.task import Task
from fedddp.figures._least_squares import cohort
from fedddp.figures.fedpa_bias_variance import BATCH, COPIES, EXAMPLES, NOISE, problems
from fedddp.local import iasg
from fedddp.methods.fedpa import kish
from fedddp.records.pictures import COLOURS, STYLE

SAMPLES = 20
BURN_INS = (0, 50, 100, 200, 400, 800)  # whole samples before the first: a path is cut into them from its end
LENGTHS = (1, 2, 5, 10, 20, 50, 100)
RATES = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)
RATE = {10: 0.1, 100: 0.1, 1000: 0.01}  # the paper's, for burn-in and steps per sample


def share(task: Task, solver: iasg.Solver, samples: int = SAMPLES) -> Tensor:
    """[problems] the effective number of each problem's first samples over their number; NaN where SGD diverged."""
    clients = cohort(task, 0)
    here = torch.zeros(len(clients), task.layout.numel, dtype=task.dtype)
    with torch.no_grad():
        _, found = solver.sample(clients, here, solver.memory(task, len(clients)))
    first = found.theta[:, :samples]
    energy = torch.stack([_energy(task, client, own) for client, own in zip(clients.ids, first, strict=True)])
    worth = kish(energy) / samples
    return torch.where(energy.isfinite().all(1), worth, torch.nan)


def _energy(task: Task, client: int, theta: Tensor) -> Tensor:
    """Minus the log posterior of each of theta [ℓ, P] under a flat prior; an example counts once."""
    index = task.shards.of_client(client)[:EXAMPLES]
    x, y = task.data.train.inputs[index], task.data.train.targets[index]
    return 0.5 * (theta @ x.T - y).square().sum(1) / NOISE**2


def solver_of(lr: float, burn_in: int, length: int, samples: int) -> iasg.Solver:
    """As many epochs as the steps take; what is too much gives further samples, after those that count."""
    steps = burn_in + samples * length
    made = iasg.Solver(lr=lr, epochs=1, batch_size=BATCH, burn_in=burn_in, steps_per_sample=length)
    return replace(made, epochs=-(-steps * BATCH // (EXAMPLES * COPIES)))


def lines(dims: int, count: int, samples: int = SAMPLES) -> list[tuple[str, Sequence[float], Tensor]]:
    """(what varies, its values, [values, problems]) of the three panels."""
    task, lr = problems(dims, count), RATE.get(dims, 0.1)
    grids: list[tuple[str, Sequence[float], list[iasg.Solver]]] = [
        ("burn-in steps", BURN_INS, [solver_of(lr, b, 50, samples) for b in BURN_INS]),
        ("steps per sample", LENGTHS, [solver_of(lr, 100, n, samples) for n in LENGTHS]),
        ("learning rate", RATES, [solver_of(rate, 100, 50, samples) for rate in RATES]),
    ]
    return [(name, x, torch.stack([share(task, one, samples) for one in solvers])) for name, x, solvers in grids]


def draw(out: Path, dims: tuple[int, ...] = (10, 100, 1000), count: int = 10, samples: int = SAMPLES) -> None:
    """The figure as PNG, SVG or PDF, by the name of `out`; it takes minutes."""
    found = {size: lines(size, count, samples) for size in dims}
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 3), layout="constrained")
        panels: Any = figure.subplots(1, 3, sharey=True)
        for colour, (size, three) in zip(COLOURS, found.items(), strict=False):
            for axes, (name, x, shares) in zip(panels, three, strict=True):
                mean, spread = shares.nanmean(1), (shares - shares.nanmean(1, keepdim=True)).square().nanmean(1).sqrt()
                axes.plot(x, mean, "o-", color=colour, ms=3, label=f"{size} dimensions")
                axes.fill_between(x, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)
                axes.set(xlabel=name, xscale="log" if x[0] else "linear", ylim=(0, 1.05))
        panels[0].set_ylabel("effective samples, as a share")
        handles, names = panels[0].get_legend_handles_labels()
        figure.legend(handles, names, loc="outside upper center", ncols=len(names))
        figure.savefig(out, dpi=150)
