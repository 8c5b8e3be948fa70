"""Pictures for TensorBoard and the report's page: learning curves and reliability (the split has its own file).

matplotlib's figures without its global state; it takes most of a second to import, so this module is imported
only where something is drawn.
"""

import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from textwrap import wrap
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator
from numpy.typing import NDArray

from fedddp.records import split_picture
from fedddp.records.clients_picture import across_examples

Array = NDArray[np.float64]
Bins = Mapping[str, Sequence[float]]  # count, and the sums of confidence and of right answers, in each bin

COLOURS = ("#3b6fb6", "#d9822b", "#3f9b5b", "#c44e52", "#8064a2", "#8c6d4f", "#d978b0", "#6f7680", "#a8a43b", "#35a7b5")
DASHES = ("-", "--", ":", "-.")
BINS = 20  # of a histogram over clients
LONG = 16  # letters of a setting's name from which on a picture with a line for each is a wide one
STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#8a94a0",
    "axes.labelcolor": "#46505c",
    "axes.titlesize": 9,
    "axes.titlecolor": "#222a33",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e8ebee",
    "xtick.color": "#46505c",
    "ytick.color": "#46505c",
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "svg.fonttype": "none",  # text stays text: small, and in the page's own font
    "svg.hashsalt": "fedddp",  # the same picture, the same bytes
}


@dataclass(frozen=True)
class Curve:
    """A line over rounds with a band of one deviation; `place` gives it colour and dash wherever it appears."""

    place: int
    rounds: Array
    mean: Array
    spread: Array


def colour(place: int) -> str:
    return COLOURS[place % len(COLOURS)]


def dash(place: int) -> str:
    return DASHES[place // len(COLOURS) % len(DASHES)]


def _styled(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    @wraps(draw)
    def drawn(*args: Any, **more: Any) -> Figure:
        with matplotlib.rc_context(STYLE):
            return draw(*args, **more)

    return drawn


@_styled
def draw_curves(metric: str, curves: Sequence[Curve], across: str = "round", unit: str = "") -> Figure:
    """All rows' curves of one metric; each line's id in the SVG is row-PLACE. `unit`: of what goes across."""
    figure = Figure(figsize=(4.2, 2.8), layout="constrained")
    axes = figure.subplots()
    for curve in curves:
        look: dict[str, Any] = {
            "color": colour(curve.place),
            "linestyle": dash(curve.place),
            "marker": "o" * (len(curve.rounds) < 2),
        }
        axes.plot(curve.rounds, curve.mean, lw=1.6, gid=f"row-{curve.place}", **look)
        band = axes.fill_between(curve.rounds, curve.mean - curve.spread, curve.mean + curve.spread)
        band.set(facecolor=colour(curve.place), alpha=0.15, linewidth=0, gid=f"row-{curve.place}-band")
    axes.set(xlabel=across, title=metric, ylim=_limits(curves))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=not unit, steps=[1, 2, 5, 10]))
    if unit:
        axes.xaxis.set_major_formatter(EngFormatter(unit))
    return figure


@_styled
def draw_reliability(panels: Mapping[str, Bins]) -> Figure:
    """A panel each: how often the model is right (up) when it is so sure (across); on the line it is calibrated.

    A dot's area is the share of the examples in its bin.
    """
    across = min(len(panels), 4)
    down = -(-len(panels) // across)
    figure = Figure(figsize=(2.35 * across, 2.35 * down), layout="constrained")
    grid = figure.subplots(down, across, sharex=True, sharey=True, squeeze=False)
    for axes, (name, bins) in zip(grid.flat, panels.items(), strict=False):
        _draw_bins(axes, bins)
        axes.set(title=_folded(name), xlim=(0, 1), ylim=(0, 1), aspect="equal")
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    figure.supxlabel("confidence", size=9, color=STYLE["axes.labelcolor"])
    figure.supylabel("accuracy", size=9, color=STYLE["axes.labelcolor"])
    return figure


@_styled
def draw_confusion(panels: Mapping[str, Mapping[str, Any]]) -> Figure:
    """A panel each: of the test examples of each class (down), the share that is taken for each class (across)."""
    across = 2 if len(panels) == 4 else min(len(panels), 3)
    down = -(-len(panels) // across)
    size = len(next(iter(panels.values()))["counts"])
    side = min(max(2.6, 0.3 * size), 5.0)
    figure = Figure(figsize=((side + 0.9) * across, (side + 0.4) * down), layout="constrained")
    grid = figure.subplots(down, across, squeeze=False)
    for axes, (name, found) in zip(grid.flat, panels.items(), strict=False):
        _draw_pairs(axes, np.array(found["counts"], dtype=float), found["names"])
        axes.set(title=_folded(name), aspect="equal")
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    figure.supxlabel("taken for", size=9, color=STYLE["axes.labelcolor"])
    figure.supylabel("is", size=9, color=STYLE["axes.labelcolor"])
    return figure


@_styled
def draw_spread(metric: str, groups: Mapping[str, Array]) -> Figure:
    """Clients as dots, a line of them for each setting; a bar at their median."""
    names = list(groups)[::-1]
    figure = Figure(figsize=(6.4 if is_wide(names) else 4.2, 0.9 + 0.42 * len(names)), layout="constrained")
    axes = figure.subplots()
    for place, name in enumerate(names):
        values = np.sort(groups[name][np.isfinite(groups[name])])
        aside = 0.26 * np.sin(2.4 * np.arange(len(values)))  # golden angles: the same picture every time
        colour_ = colour(len(names) - 1 - place)
        axes.scatter(values, place + aside, 12, color=colour_, alpha=0.55, linewidth=0)
        if len(values):
            axes.vlines(np.median(values), place - 0.36, place + 0.36, color=colour_, lw=2)
    axes.set_yticks(range(len(names)), [_folded(name) for name in names])
    axes.set(title=f"{metric} of each client", xlabel=metric, ylim=(-0.6, len(names) - 0.4))
    axes.grid(axis="y", visible=False)
    return figure


def is_wide(names: Collection[str]) -> bool:
    """Names beside a picture of the usual width would leave it no room."""
    return max(map(len, names), default=0) > LONG


@_styled
def draw_histogram(metric: str, groups: Mapping[str, Array]) -> Figure:
    """How many clients have how much of it: a line of steps for each setting, all over the same bins."""
    figure = Figure(figsize=(4.2, 2.8), layout="constrained")
    axes = figure.subplots()
    there = {name: values[np.isfinite(values)] for name, values in groups.items()}
    edges = np.histogram_bin_edges(np.concatenate(list(there.values())), BINS)
    for place, values in enumerate(there.values()):
        counts = np.histogram(values, edges)[0]
        axes.stairs(counts, edges, lw=1.6, edgecolor=colour(place), linestyle=dash(place))
    axes.set(title=f"clients by {metric}", xlabel=metric, ylabel="clients")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    return figure


@_styled
def draw_scatter(metric: str, groups: Mapping[str, tuple[Array, Array]]) -> Figure:
    """Clients as dots over how many training examples they have; a colour for each setting."""
    figure = Figure(figsize=(4.2, 2.8), layout="constrained")
    axes = figure.subplots()
    for place, (examples, values) in enumerate(groups.values()):
        axes.scatter(examples, values, 12, color=colour(place), alpha=0.55, linewidth=0)
    axes.set(title=f"{metric} of each client", xlabel="training examples")
    across_examples(axes, np.concatenate([examples for examples, _ in groups.values()]))
    return figure


@_styled
def draw_split(split: Mapping[str, Any], title: str) -> Figure:
    """Sizes and classes of the clients, from what a run's pictures.json holds."""
    counts, sizes = np.array(split["counts"]), np.array(split["sizes"])
    return split_picture.draw(counts, sizes, title, split["names"], split.get("clients", ()))


def draw_all(numbers: Mapping[str, Any], title: str) -> Iterator[tuple[str, Figure]]:
    """What a run's pictures.json has the numbers of: the split, and reliability of one or several kinds."""
    for name, value in numbers.items():
        yield name, DRAWN.get(name, _draw_one)(value, title)


def _draw_one(bins: Bins, title: str) -> Figure:
    return draw_reliability({title: bins})


def _draw_one_confusion(found: Mapping[str, Any], title: str) -> Figure:
    return draw_confusion({title: found})


DRAWN: dict[str, Callable[..., Figure]] = {"split": draw_split, "confusion": _draw_one_confusion}


def png(figure: Figure) -> bytes:
    out = io.BytesIO()
    figure.savefig(out, format="png", dpi=150)
    return out.getvalue()


def svg(figure: Figure) -> str:
    """As an element to put into a page."""
    out = io.StringIO()
    with matplotlib.rc_context(STYLE):
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None})
    text = out.getvalue()
    return text[text.index("<svg") :]


def _draw_bins(axes: Any, bins: Bins) -> None:
    count, confidence, right = (np.array(bins[name], dtype=float) for name in ("count", "confidence", "right"))
    there = count > 0
    accuracy, sure, share = right[there] / count[there], confidence[there] / count[there], count[there] / count.sum()
    axes.plot([0, 1], [0, 1], color="#8a94a0", lw=0.8, ls="--")
    axes.vlines(sure, accuracy, sure, color="#c44e52", lw=1)
    axes.scatter(sure, accuracy, 6 + 220 * share, color=COLOURS[0], alpha=0.85, linewidth=0, clip_on=False, zorder=3)
    ece = np.abs(confidence - right).sum() / count.sum()
    axes.text(0.96, 0.05, f"ECE {ece:.3f}", transform=axes.transAxes, ha="right", fontsize=8, color="#46505c")


def _limits(curves: Sequence[Curve]) -> tuple[float, float]:
    """What nearly all points need: a wild first round must not flatten the rest."""
    values = np.concatenate([curve.mean for curve in curves])
    ends = np.concatenate([curve.mean[-1:] for curve in curves])
    values, ends = values[np.isfinite(values)], ends[np.isfinite(ends)]
    low, high = np.quantile(values, [0.02, 0.98]) if len(values) else (0.0, 1.0)
    low, high = np.min([low, *ends]), np.max([high, *ends])
    room = 0.06 * (high - low) or 0.05
    return low - room, high + room


def _draw_pairs(axes: Any, counts: Array, names: Sequence[str]) -> None:
    size = len(counts)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    edges = np.arange(size + 1) - 0.5
    axes.pcolormesh(edges, edges, shares, cmap="Blues", vmin=0, vmax=1, rasterized=size > 30)
    axes.invert_yaxis()
    axes.grid(visible=False)
    every = max(1, -(-size // 20))  # so that labels do not overlap
    shown = [str(name)[:10] for name in names] or [str(number) for number in range(size)]
    turned = max(map(len, shown)) > 2
    axes.set_xticks(range(0, size, every), shown[::every], rotation=90 if turned else 0)
    axes.set_yticks(range(0, size, every), shown[::every])
    for row, column in zip(*np.nonzero(counts), strict=True) if size <= 12 else ():
        ink = "white" if shares[row, column] > 0.55 else split_picture.CELL
        text = f"{100 * shares[row, column]:.0f}"
        axes.text(column, row, text, ha="center", va="center", fontsize=7, color=ink)


def _folded(name: str) -> str:
    """A long name in two lines."""
    return "\n".join(wrap(name, 28)[:2]) or name
