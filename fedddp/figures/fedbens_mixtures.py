"""Accuracy against the number of mixture components ("FedBEns", Fig. 2).

Clients train the largest mixture once; smaller ones are its first components, so that only the server works again.
`fedddp figure fedbens_mixtures fedbens_fmnist_a01 split.alpha=0.05,0.4 seed=0..2` draws a line for each heterogeneity,
with a band of one deviation over seeds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure

from fedddp.config import loading as configuration
from fedddp.config.loading import Config
from fedddp.core.task import Task
from fedddp.evaluation.evaluate import evaluate
from fedddp.exchange.group import Exchange
from fedddp.figures._least_squares import alone
from fedddp.jobs.grid import points
from fedddp.methods import fedbens
from fedddp.methods._mixture import Mixture
from fedddp.records.pictures import COLOURS, STYLE
from fedddp.rounds.federate import Federation
from fedddp.runs.build import make_federation, make_task

CPU = torch.device("cpu")


def draw(
    out: Path,
    experiment: str | None = None,
    settings: Sequence[str] = ("split.alpha=0.1,0.4", "seed=0..2"),
    exchange: Exchange | None = None,
) -> None:
    """PNG, SVG or PDF by name; settings are a grid, as for a sweep."""
    lines: dict[str, list[list[float]]] = {}
    configs = [configuration.load(experiment, ["method=fedbens", *point]) for point in points(settings)]
    members = _method(configs[0]).members
    with alone(exchange) as world:
        for config in configs:
            lines.setdefault(f"α = {config['split.alpha']}", []).append(accuracies(config, world, members))
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(4.2, 2.8), layout="constrained")
        _curves(figure.subplots(), lines, range(1, members + 1))
        figure.savefig(out, dpi=150)


def accuracies(config: Config, exchange: Exchange, members: int) -> list[float]:
    """Test accuracy of the ensemble with 1, 2, ... components for each client and models at the server."""
    task = make_task(config, CPU)
    trained = _federation(config, task, exchange, members, steps=1)
    trained.round(trained.method.init_server(task), 0)
    found = []
    for count in range(1, members + 1):
        part = _federation(config, task, exchange, count, _method(config).steps)
        part.store.memory = _first(trained.store.memory, count)
        server, _ = part.round(part.method.init_server(task), 0)
        found.append(evaluate(task, exchange, part.method.models(server))["accuracy"])
    return found


def _federation(config: Config, task: Task, exchange: Exchange, members: int, steps: int) -> Federation:
    method = replace(_method(config), members=members, steps=steps)
    return make_federation(replace(config, method=method), task, exchange)


def _method(config: Config) -> fedbens.Method:
    assert isinstance(config.method, fedbens.Method)
    return config.method


def _first(mixture: Mixture, count: int) -> Mixture:
    part = Mixture(*(leaf[:, :count].clone() for leaf in mixture))
    return part._replace(weight=torch.full_like(part.weight, 1 / count))


def _curves(axes: Any, lines: Mapping[str, list[list[float]]], across: Sequence[int]) -> None:
    for (name, runs), colour in zip(lines.items(), COLOURS, strict=False):
        table = 100 * torch.tensor(runs, dtype=torch.float64)  # [seeds, M]
        mean, spread = table.mean(0), table.std(0, correction=0)
        axes.plot(across, mean, color=colour, lw=1.6, marker="o", ms=3, label=name)
        axes.fill_between(across, mean - spread, mean + spread, color=colour, alpha=0.15, linewidth=0)
    axes.set(xlabel="components M", ylabel="test accuracy (%)", xticks=list(across))
    axes.legend(frameon=False)
