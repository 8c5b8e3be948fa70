"""A split as a table of clients x classes, in text and as a picture."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import QuadMesh
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from fedddp.core.shards import Counts

MOST_ROWS, MOST_COLUMNS = 40, 20  # of the printed table
MANY = 100  # clients, whose numbers nobody reads in a picture
INK, GRID, CELL = "#2b3a4a", "#e4e9ee", "#1d2733"  # CELL: on a light shade, also where the page is dark


def text(counts: Counts, sizes: Counts, names: Sequence[str] = (), who: Sequence[str] = ()) -> str:
    """The table, cut where it is too long for a screen, and what it amounts to; `who`: the clients' names."""
    clients, classes = counts.shape
    shown, wide = min(clients, MOST_ROWS), classes <= MOST_COLUMNS
    heads = list(names) if names and wide else [str(c) for c in range(classes)]
    width = [max(len(head), len(str(column.max(initial=0)))) for head, column in zip(heads, counts.T, strict=True)]
    called = [str(name) for name in (who or range(clients))][:shown]
    left = max(6, *map(len, called))
    lines = [
        f"{'client':>{left}}  examples"
        + ("  " + " ".join(h.rjust(w) for h, w in zip(heads, width, strict=True))) * wide
    ]
    for client in range(shown):
        cells = " ".join(str(n).rjust(w) if n else "·".rjust(w) for n, w in zip(counts[client], width, strict=True))
        lines.append(f"{called[client]:>{left}}  {sizes[client]:>8}" + f"  {cells}" * wide)
    if shown < clients:
        lines.append(f"   ...  {clients - shown} more clients")
    quantiles = " / ".join(f"{value:.0f}" for value in np.quantile(sizes, [0, 0.5, 1]))
    lines.append(f"{clients} clients, {sizes.sum()} examples; smallest / median / largest {quantiles}")
    if classes > 1:
        lines.append(
            f"a client's examples are spread as over {effective_classes(counts).mean():.1f} of {classes} classes"
        )
    return "\n".join(lines)


def effective_classes(counts: Counts) -> NDArray[np.float64]:
    """[K] exp(entropy) of each client's classes: 1 for a single class, `classes` for all alike."""
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return np.exp(-(shares * np.log(np.where(shares > 0, shares, 1))).sum(1))


def draw(counts: Counts, sizes: Counts, title: str = "", names: Sequence[str] = (), who: Sequence[str] = ()) -> Figure:
    """Sizes as bars above each client's classes as a column of shades; many clients are sorted by size.

    `names` are the classes', `who` the clients'.
    """
    clients, classes = counts.shape
    many = clients > MANY
    if many:
        order = np.argsort(-sizes, kind="stable")
        counts, sizes = counts[order], sizes[order]
    depth = min(max(0.34 * classes, 0.5), 6.0)
    figure = Figure(figsize=(min(3.5 + 0.52 * clients, 11.0), 2.4 + depth), layout="constrained")
    FigureCanvasAgg(figure)
    bars, shades = figure.subplots(2, 1, sharex=True, height_ratios=[1.3, depth])
    if many:  # one outline: a bar of its own for each of a thousand takes seconds and 40 MB
        bars.stairs(sizes, np.arange(clients + 1) - 0.5, fill=True, color="#5b7f9f", linewidth=0)
    else:
        bars.bar(np.arange(clients), sizes, width=0.82, color="#5b7f9f", linewidth=0)
    bars.set_ylabel("examples")
    bars.set_title(title, loc="left", fontsize=11, color=INK)
    bars.spines[["top", "right"]].set_visible(False)
    bars.tick_params(axis="x", length=0)
    shaded = _shade(shades, counts, names)
    shades.set_xlabel(f"{clients} clients, the largest first" if many else "client")
    if who and clients <= MOST_COLUMNS:
        shades.set_xticks(range(clients), who, rotation=0 if max(map(len, who)) < 6 else 40, ha="center")
    else:
        shades.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=20))
    bar = figure.colorbar(shaded, ax=shades, pad=0.015, fraction=0.04)
    bar.set_label("share of the client's examples" if depth > 2 else "share", fontsize=8)
    bar.outline.set_visible(False)
    return figure


def _shade(axes: Axes, counts: Counts, names: Sequence[str]) -> QuadMesh:
    """Each client's share of every class; with the counts where there is room for them."""
    clients, classes = counts.shape
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    scale = PowerNorm(0.6, vmin=0, vmax=shares.max(initial=1e-9))  # small shares are many, and worth telling apart
    edges = (np.arange(clients + 1) - 0.5, np.arange(classes + 1) - 0.5)
    mesh = axes.pcolormesh(*edges, shares.T, cmap="Blues", norm=scale)  # an image would take 30 MB to be scaled
    axes.invert_yaxis()
    axes.spines[:].set_visible(False)
    if names and classes <= MOST_COLUMNS:
        axes.set_yticks(range(classes), names)
    else:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=10))
        axes.set_ylabel("class")
    if clients > 20 or classes > 20:
        return mesh
    axes.hlines(np.arange(classes + 1) - 0.5, -0.5, clients - 0.5, color=GRID, linewidth=0.6)
    axes.vlines(np.arange(clients + 1) - 0.5, -0.5, classes - 0.5, color=GRID, linewidth=0.6)
    for client, label in zip(*np.nonzero(counts), strict=True):
        colour = "white" if scale(shares[client, label]) > 0.5 else CELL
        axes.text(client, label, str(counts[client, label]), ha="center", va="center", fontsize=7.5, color=colour)
    return mesh
