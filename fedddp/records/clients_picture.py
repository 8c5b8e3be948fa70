"""Clients as dots: the first metric of every kind of model against how many training examples a client has."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, LogLocator, MaxNLocator, NullFormatter
from numpy.typing import NDArray

MOST_PANELS = 4


def draw(metrics: Mapping[str, NDArray[np.float64]], sizes: Sequence[int], unseen: int = 0) -> Figure:
    """A panel for each kind of model (server, averaged, personal, ...); clients that never train are hollow."""
    first = next(iter(metrics))
    kinds = {name: values for name, values in metrics.items() if name.endswith(first)}
    panels = list(kinds.items())[:MOST_PANELS]
    figure = Figure(figsize=(2.6 * len(panels), 2.6), layout="constrained")
    grid = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    trained, count = len(sizes) - unseen, np.asarray(sizes)
    for axes, (name, values) in zip(grid, panels, strict=True):
        axes.scatter(count[:trained], values[:trained], 14, color="#3b6fb6", alpha=0.7, linewidth=0)
        axes.scatter(count[trained:], values[trained:], 14, facecolor="none", edgecolor="#d9822b")
        there = values[:trained][np.isfinite(values[:trained])]
        if len(there):
            axes.axhline(float(there.mean()), color="#8a94a0", lw=0.8, ls="--")
        axes.set(title=name)
        across_examples(axes, count)
    figure.supxlabel("training examples of the client", size=9)
    return figure


def across_examples(axes: Axes, counts: NDArray[np.float64]) -> None:
    """How many examples clients have, across; by powers of ten where they differ that much, with labels apart."""
    low, high = (counts.min(), counts.max()) if counts.size else (1, 1)
    if high < 10 * max(low, 1):
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=True, steps=[1, 2, 5, 10]))
        return
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 100 * max(low, 1) else (1,)))
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.xaxis.set_minor_formatter(NullFormatter())
