"""Logistic regression over digit pairs ("Federated ADMM from Bayesian Duality", Fig. 3a), as its authors run it.

The text says full covariance and solves to convergence (duality_logistic_full); the program that made the figure has a
diagonal one: the first 5,000 digits of 14 x 14 pixels, five clients with two digits each, δ = 10, ρ = 1, and IVON with
1,250 steps on all of a client's data, whose rate falls to 0 within each fit. PVI diverges there, BayesADMM comes down.
BregmanADMM has the program's sign. The objective is Σ_k E_q[f_k] + KL(q || prior); the program leaves out a constant,
½P(1 + log δ), which would add 3,237.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core.gaussian import diagonal
from fedddp.core.objective import CrossEntropy
from fedddp.core.registry import find
from fedddp.core.rng import Streams, stream
from fedddp.core.task import Task
from fedddp.figures._duality import linear_task, trace
from fedddp.local import ivon
from fedddp.methods import bayes_admm, bregman_admm, pvi
from fedddp.records.pictures import COLOURS, STYLE

DELTA = 10.0


class Annealed(ivon.Solver):
    """IVON whose rate falls by a cosine from step to step of a fit, with nothing kept between fits."""

    lr: float = 0.002
    beta2: float = 0.9995
    hess_init: float = 0.0
    keep: bool = False
    epochs: int = 1250
    batch_size: int = 60_000  # all of a client's data

    def _descend(self, cohort: Cohort, state: ivon.State, debiased: Tensor) -> tuple[Tensor, Tensor]:
        normal, full = self._normal(cohort), state.lr.clone()
        rates = cosine(len(debiased))
        for step, batch in enumerate(cohort.batches(self.epochs, self.batch_size)):
            state.lr.copy_(full * float(rates[step]))
            here = ivon.State(*(leaf[: len(batch.inputs)] for leaf in state))
            factor = self._estimate(here, cohort, batch, self._noises(here, step, normal))
            self._step(here, factor, debiased[step, : len(batch.inputs)])
        return state.mean, state.variance


def cosine(steps: int) -> Tensor:
    """The factor of each step's rate."""
    return 0.5 * (1 + torch.cos(torch.pi * torch.arange(steps, dtype=torch.float64) / steps))


def methods() -> dict[str, Any]:
    return {
        "PVI": pvi.Method(damping=1.0, delta=DELTA),
        "PVI, damped": pvi.Method(damping=0.2, delta=DELTA),
        "BregmanADMM": bregman_admm.Method(rho=1.0, damping=0.2, sign="released", delta=DELTA),
        "BayesADMM": bayes_admm.Method(rho=1.0, delta=DELTA),
    }


def problem(source: str = "mnist", count: int = 5000, side: int = 14) -> Task:
    """The first `count` pictures, every so many pixels of them, by pairs of digits; noise is fresh in every round."""
    data = find("data", source)().load()
    pictures = data.prepare(data.train.inputs[:count], torch.float64)
    step = pictures.shape[-1] // side
    pixels = pictures[..., ::step, ::step][..., :side, :side].flatten(1)
    labels = data.train.targets[:count]
    own = [labels // 2 == pair for pair in range(5)]
    task = linear_task(
        [pixels[k] for k in own], [labels[k] for k in own], outputs=10, classes=10, objective=CrossEntropy()
    )
    return replace(task, streams=Streams(0))


def objective(task: Task, lam: Tensor, noise: Tensor) -> float:
    """Σ_k E_q[f_k] + KL(q || N(0, 1/delta))."""
    train = task.data.train
    points = [diagonal.sample(lam, z) for z in noise]
    losses = [task.objective.loss(task.outputs(point, train.inputs), train.targets).sum() for point in points]
    mean, precision = diagonal.mean(lam), diagonal.precision(lam)
    divergence = 0.5 * (DELTA * (1 / precision + mean.square()) - 1 + (precision / DELTA).log()).sum()
    return float(torch.stack(losses).mean() + divergence)


def curves(task: Task, rounds: int, local: ivon.Solver | None = None, samples: int = 10) -> dict[str, list[float]]:
    """The objective after every round, as far as a method gets: an improper posterior ends a curve."""
    noise = torch.randn(samples, len(task.initial), generator=stream("objective"), dtype=torch.float64)
    found: dict[str, list[float]] = {}
    for name, method in methods().items():
        found[name] = []
        try:
            for server, _ in trace(method, local or Annealed(), task, rounds):
                if method.improper(server):
                    break
                found[name].append(objective(task, server.lam, noise))
        except ValueError:  # a client's posterior became improper
            continue
    return found


def draw(out: Path, rounds: int = 10) -> None:
    """The figure as PNG, SVG or PDF, by the name of `out`."""
    found = curves(problem(), rounds)
    for name, values in found.items():
        print(f"{name}: {', '.join(f'{value:,.0f}' for value in values)}", flush=True)
    draw_curves(out, found)


def draw_curves(out: Path, found: Mapping[str, list[float]]) -> None:
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.6, 3.2), layout="constrained")
        axes = figure.subplots()
        for place, (name, values) in enumerate(found.items()):
            axes.plot(range(len(values)), values, color=COLOURS[place], marker=".", label=name)
        axes.set(yscale="log", xlabel="round", ylabel="variational objective")
        axes.legend()
        figure.savefig(out, dpi=150)
