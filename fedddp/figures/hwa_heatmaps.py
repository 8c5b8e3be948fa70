"""HWA's Figs. 1 and 2: the output layer that clients learn, and where the curvature of a client's model lies.

Left, Fig. 1: the first 25 weights of each of the ten outputs of two clients' models, with IID data and with two shards
of labels each (type II). Right, Fig. 2: D = Σ_i (∂loss_i/∂w)² of a client with IID data, layer by layer. All after ten
epochs of the experiment's solver from its start, MNIST; weights by the largest of their panel, and curvature by the
largest of the model, on a logarithmic scale, because on a plain one the hidden layers are black, as in the paper.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.clients.curvature import squared_grads
from fedddp.clients.oracle import Oracle
from fedddp.config import loading as configuration
from fedddp.core.task import Task
from fedddp.records.pictures import STYLE
from fedddp.rounds.solver import PointSolver
from fedddp.runs.build import make_task

EPOCHS = 10
WEIGHTS = 25  # of each output, as in the paper
UNITS = 100  # of a hidden layer that are drawn
DECADES = 6.0  # of curvature below the largest


def trained(experiment: str, settings: Sequence[str]) -> tuple[Cohort, Tensor]:
    """Two clients, those of the lowest and of the highest labels, and their parameters [2, P] after ten epochs."""
    config = configuration.load(experiment, ["seed=1", f"local.epochs={EPOCHS}", *settings])
    task = make_task(config, torch.device("cpu"))
    oracle = Oracle(task.module, task.layout, task.objective)
    cohort = Cohort(extremes(task), 0, task, oracle)
    assert isinstance(config.local, PointSolver), "the experiment's own: SGD"
    with torch.no_grad():
        fit = config.local.minimise(cohort, task.initial, config.local.memory(task, len(cohort)))
    return cohort, fit.theta


def extremes(task: Task) -> tuple[int, ...]:
    """The clients with the lowest and with the highest mean label."""
    means = [_labels(task, client).float().mean() for client in range(task.num_clients)]
    ends = {int(torch.stack(means).argmin()), int(torch.stack(means).argmax())}
    return tuple(sorted(ends, key=lambda client: -int(task.num_examples[client])))


def _labels(task: Task, client: int) -> Tensor:
    return task.data.train.targets[task.shards.of_client(client)]


def classes(task: Task, client: int) -> str:
    """Labels that make up a twentieth of a client or more."""
    share = torch.bincount(_labels(task, client).flatten(), minlength=task.data.classes) / task.num_examples[client]
    found = (share >= 0.05).nonzero().flatten().tolist()
    return "all digits" if len(found) == task.data.classes else "digits " + ", ".join(map(str, found))


def curvature(cohort: Cohort, theta: Tensor) -> dict[str, Tensor]:
    """{layer: D [out, in]} of the cohort's last client, of weights alone."""
    found = cohort.task.layout.views(squared_grads(cohort, theta)[-1])
    return {name.removesuffix(".weight"): value for name, value in found.items() if value.dim() == 2}


def means(layers: dict[str, Tensor]) -> dict[str, float]:
    """{layer: the mean curvature of its weights, over that of the output layer}."""
    output = list(layers.values())[-1].mean()
    return {name: float(layer.mean() / output) for name, layer in layers.items()}


def draw(
    out: Path, experiments: tuple[str, str] = ("hwa_mnist_iid", "hwa_mnist_type2"), settings: Sequence[str] = ()
) -> None:
    """The figure as PNG, SVG or PDF, by the name of `out`; about a minute."""
    found = [trained(name, settings) for name in experiments]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(10, 5.6), layout="constrained")
        halves: Any = figure.subfigures(1, 2, width_ratios=(1.25, 1))
        left, right = halves
        draw_weights(left, found, ("IID", "type II"))
        draw_curvature(right, curvature(*found[0]), classes(found[0][0].task, found[0][0].ids[-1]))
        figure.savefig(out, dpi=110)


def draw_weights(place: Any, found: Sequence[tuple[Cohort, Tensor]], names: Sequence[str]) -> None:
    panels = place.subplots(len(found), 2, squeeze=False)
    for row, (cohort, theta), name in zip(panels, found, names, strict=True):
        for axes, client, own in zip(row, cohort.ids, theta, strict=True):
            last = [view for view in cohort.task.layout.views(own).values() if view.dim() == 2][-1][:, :WEIGHTS]
            axes.imshow(last / last.abs().max(), cmap="RdBu", vmin=-1, vmax=1, aspect="auto")
            axes.set_title(f"{name}: {classes(cohort.task, client)}", fontsize=8)
            axes.set(yticks=range(0, len(last), 3), xticks=(), ylabel="output")
            axes.grid(visible=False)
    place.suptitle("Output layer, two clients", fontsize=9)


def draw_curvature(place: Any, layers: dict[str, Tensor], client: str) -> None:
    most, mean = max(float(layer.max()) for layer in layers.values()), means(layers)
    panels = place.subplots(len(layers), 1)
    for axes, (name, layer), label in zip(panels, reversed(layers.items()), _labels_of(len(layers)), strict=True):
        shade = (layer[:UNITS, :UNITS] / most).clamp_min(10**-DECADES).log10()
        image = axes.imshow(shade, cmap="magma", vmin=-DECADES, vmax=0, aspect="auto")
        axes.set_title(f"{label}: mean {mean[name]:.2g} of the output layer's", fontsize=8)
        axes.set(xticks=(), yticks=())
        axes.grid(visible=False)
    place.colorbar(image, ax=panels, label="log10 of D over the largest", shrink=0.7)
    place.suptitle(f"Curvature of a client with {client}", fontsize=9)


def _labels_of(count: int) -> list[str]:
    """From the output down, as curvature's layers are drawn."""
    return ["Output layer", *[f"Hidden layer {number}" for number in range(count - 1, 0, -1)]]
