"""FedPA's Fig. 3: bias and variance of a client's change on random least squares, for fedavg and fedpa.

Ten problems of 500 examples (scikit-learn's make_regression, with inputs scaled from 1 down to 1/4, since between
equally curved directions there is nothing to tell), ten random starts for each. The exact change is Σ⁻¹(start - mean)
with Σ⁻¹ = XᵀX/N. A common factor of all changes is the server's learning rate, so the estimates of a problem are scaled
by the one number that fits best before their errors are taken. The bias is the norm of the mean error over starts, the
variance the Frobenius norm of its covariance; both in the mean over problems, and relative to the exact change
(squared).
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import torch
from matplotlib.figure import Figure
from sklearn.datasets import make_regression
from torch import Tensor

from fedddp.core.rng import stream
from fedddp.core.task import Task
from fedddp.figures._least_squares import cohort, least_squares
from fedddp.local import iasg
from fedddp.methods.fedpa import delta
from fedddp.records.pictures import COLOURS, STYLE

EXAMPLES, BATCH, NOISE = 500, 10, 50.0
COPIES = 20  # of each example, so that batches come as good as with replacement
LENGTH, BURN_IN = 50, 100  # steps per sample, steps before the first
RATE = {10: 0.8, 100: 0.3, 1000: 0.04}
SHRINKAGE = {10: 0.01, 100: 0.005, 1000: 0.001}  # the paper's
SHRINKAGES = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)
STEPS = (1, 2, 5, 10, 20, 50, 100, 200)
SAMPLES = (1, 2, 5, 10, 20, 50, 100, 200, 400)


class Changes(NamedTuple):
    """Estimates [starts, problems, settings, P]."""

    exact: Tensor  # [starts, problems, P]
    averaged: Tensor  # fedavg, after each number of STEPS
    sampled: Tensor  # fedpa, with each number of SAMPLES
    shrunk: Tensor  # fedpa with all samples, for each of SHRINKAGES


def problems(dims: int, count: int) -> Task:
    """Random regressions, each of them a client."""
    clients, scale = [], torch.logspace(0, -2, dims, base=2, dtype=torch.float64)
    for i in range(count):
        x, y, w = make_regression(EXAMPLES, dims, coef=True, noise=NOISE, random_state=i)
        inputs = torch.from_numpy(x) * scale
        targets = inputs @ torch.from_numpy(w) + torch.from_numpy(y - x @ w)
        clients.append((inputs.repeat(COPIES, 1), targets.repeat(COPIES)))
    return least_squares(clients, torch.zeros(dims, dtype=torch.float64), seed=0)


def study(dims: int, most: int, count: int = 10, starts: int = 10) -> Changes:
    """Changes of every client from `starts` random starts, with up to `most` samples."""
    task = problems(dims, count)
    epochs = -(-(BURN_IN + most * LENGTH) * BATCH // (EXAMPLES * COPIES))
    local = iasg.Solver(lr=RATE[dims], epochs=epochs, batch_size=BATCH, steps_per_sample=LENGTH, samples=most)
    found = []
    for number in range(starts):
        here = 50 * torch.randn(count, dims, generator=stream("bias", dims, number), dtype=torch.float64)
        found.append(_changes(task, number, here, local))
    return Changes(*(torch.stack(part) for part in zip(*found, strict=True)))


def _changes(task: Task, number: int, here: Tensor, local: iasg.Solver) -> Changes:
    """All of one start, without the first axis."""
    clients = cohort(task, number)
    exact = clients.full_grad(here) / clients.num_examples.unsqueeze(1)
    path: list[Tensor] = []

    def watch(step: int, theta: Tensor) -> None:
        if step + 1 in STEPS:
            path.append(here - theta)

    with torch.no_grad():
        short = replace(local, epochs=1)
        short.minimise(clients, here, short.memory(task, len(here)), watch=watch)
        _, chain = local.sample(cohort(task, number), here, local.memory(task, len(here)))
    usual, most = SHRINKAGE[here.shape[1]], chain.theta.shape[1]
    sampled = _each(here, chain.theta, [(n, usual) for n in SAMPLES if n <= most])
    shrunk = _each(here, chain.theta, [(most, shrinkage) for shrinkage in SHRINKAGES])
    return Changes(exact, torch.stack(path, dim=1), sampled, shrunk)


def _each(here: Tensor, chain: Tensor, settings: list[tuple[int, float]]) -> Tensor:
    """fedpa's change for each number of samples and shrinkage, [problems, settings, P]."""
    rows = zip(here, chain, strict=True)
    return torch.stack([torch.stack([delta(theta, own[:n], rho) for n, rho in settings]) for theta, own in rows])


def bias_and_variance(estimates: Tensor, exact: Tensor) -> tuple[Tensor, Tensor]:
    """Of estimates [starts, problems, settings, P]; [settings] each."""
    truth = exact.unsqueeze(2)
    scale = (estimates * truth).sum((0, 3), keepdim=True) / estimates.square().sum((0, 3), keepdim=True)
    error = scale * estimates - truth
    mean = error.mean(0)
    away = error - mean
    gram = torch.einsum("ikap,jkap->kaij", away, away) / (len(error) - 1)  # same norm as the covariance's
    size = exact.norm(dim=-1).mean(0).unsqueeze(1)  # [problems, 1]
    bias, variance = mean.norm(dim=-1) / size, gram.flatten(2).norm(dim=-1) / size.square()
    return bias.mean(0), variance.mean(0)


def draw(out: Path, dims: tuple[int, ...] = (10, 100), most: int = 400, count: int = 10, starts: int = 10) -> None:
    """The figure as PNG, SVG or PDF, by the name of `out`; it takes minutes."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 2.7 * len(dims)), layout="constrained")
        for row, size in zip(figure.subplots(len(dims), 3, squeeze=False), dims, strict=True):
            found = study(size, most, count, starts)
            after = [n * LENGTH for n in SAMPLES if n <= most]
            _panel(row[0], f"fedavg, {size} dimensions", "local steps", STEPS, found.averaged, found.exact)
            _panel(row[1], f"fedpa, {size} dimensions", "local steps", after, found.sampled, found.exact)
            title = f"fedpa, {size} dimensions, {max(after)} steps"
            _panel(row[2], title, "shrinkage", SHRINKAGES, found.shrunk, found.exact)
        figure.savefig(out, dpi=150)


def _panel(axes: Any, title: str, label: str, x: Sequence[float], estimates: Tensor, exact: Tensor) -> None:
    bias, variance = bias_and_variance(estimates, exact)
    axes.plot(x, bias, "o-", color=COLOURS[0])
    axes.set(title=title, xlabel=label, xscale="log", ylim=(0, None))
    axes.set_ylabel("bias", color=COLOURS[0])
    right = axes.twinx()
    right.plot(x, variance, "s--", color=COLOURS[1])
    right.set(ylim=(0, None))
    right.set_ylabel("variance", color=COLOURS[1])
    right.grid(visible=False)
