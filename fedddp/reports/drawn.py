"""The pictures of one experiment's section, each with its numbers: curves, clients, confusion, calibration, splits."""

from collections.abc import Callable, Iterator
from functools import partial
from html import escape
from typing import Any

import numpy as np

from fedddp.records import pictures as drawing
from fedddp.records.pictures import Curve, colour, dash
from fedddp.reports.calibrated import calibrated
from fedddp.reports.clients import clients
from fedddp.reports.index import Array
from fedddp.reports.numbers import curve
from fedddp.reports.plate import plate
from fedddp.reports.rows import Row
from fedddp.reports.runs import Record
from fedddp.reports.sections import Section

KINDS = {"reliability": "", "averaged_reliability": ", averaged"}  # and what they add to a row's name
CURVES = 12  # most rows in a picture of curves
PANELS = 8  # most reliability diagrams
MATRICES = 4  # most confusion matrices
SPLITS = 2  # most heat maps of who has what
DASHES = {"-": "solid", "--": "dashed", ":": "dotted", "-.": "double"}  # matplotlib's and the browser's


def pictures(section: Section) -> Iterator[str]:
    for part in (_curves, _costs, clients, _reliability, calibrated, _confusion, _splits):
        yield from part(section)


def key(place: int) -> str:
    """The row's line in the charts, in small."""
    return f'<span class="key" style="border-top-style:{DASHES[dash(place)]};border-color:{colour(place)}"></span>'


def _legend(section: Section) -> str:
    rows = section.rows[:CURVES]
    names = (f'<span data-row="{i}">{key(i)}{escape(row.name)}</span>' for i, row in enumerate(rows))
    return f'<div class="legend">{"".join(names)}</div>'


def _left_out(drawn: int, all_: int, what: str) -> str:
    return f" The {drawn} best of {all_} {what} are drawn." if all_ > drawn else ""


def _curves(section: Section) -> Iterator[str]:
    more = _left_out(CURVES, len(section.rows), "settings")
    yield f"<h3>Learning curves</h3><p>Mean over seeds; the band is one deviation.{more}</p>"
    yield f'{_legend(section)}<div class="charts">'
    for metric in dict.fromkeys([*section.metrics, "train_loss"]):
        yield from _chart(section, metric, "round", "", partial(_by_round, metric=metric))
    yield "</div>"


def _costs(section: Section) -> Iterator[str]:
    """The first metric against what it cost."""
    metric = section.metrics[0]
    yield f"<h3>{escape(metric)} against its cost</h3>"
    yield (
        "<p>Across: the sum up to that round, in the mean over seeds, of what all clients send and are sent, and of "
        'the seconds that rounds took where they ran.</p><div class="charts">'
    )
    for across, unit, cost in (("bytes sent", "B", _bytes), ("seconds", "s", _seconds)):
        yield from _chart(section, metric, across, unit, partial(_against, metric=metric, cost=cost))
    yield "</div>"


def _chart(
    section: Section, metric: str, across: str, unit: str, points: Callable[[Row], tuple[Array, Array, Array]]
) -> Iterator[str]:
    """One picture of curves, unless nobody has points."""
    rows = section.rows[:CURVES]
    curves = [Curve(i, *points(row)) for i, row in enumerate(rows)]
    curves = [c for c in curves if len(c.rounds)]
    if curves:
        head = ["setting", across, metric, f"{metric}_std"]
        data = [
            [rows[c.place].name, *(f"{x:.7g}" for x in point)]
            for c in curves
            for point in zip(c.rounds, c.mean, c.spread, strict=True)
        ]
        yield plate(
            f"{section.title}-{metric}-by-{across}", drawing.draw_curves(metric, curves, across, unit), head, data
        )


def _by_round(row: Row, metric: str) -> tuple[Array, Array, Array]:
    return curve(row.runs, metric)


def _against(row: Row, metric: str, cost: Callable[[Record], Array]) -> tuple[Array, Array, Array]:
    """The curve, with what it cost so far instead of the round."""
    rounds, mean, spread = curve(row.runs, metric)
    so_far = [np.interp(rounds, run.column("round"), np.cumsum(np.nan_to_num(cost(run)))) for run in row.runs]
    total = np.mean(so_far, axis=0) if so_far else rounds
    return (total, mean, spread) if len(rounds) and total[-1] > 0 else (rounds[:0], mean[:0], spread[:0])


def _bytes(run: Record) -> Array:
    return run.column("active") * (run.column("bytes_up") + run.column("bytes_down"))


def _seconds(run: Record) -> Array:
    return run.column("seconds")


def _reliability(section: Section) -> Iterator[str]:
    """The bins of all seeds of a row together: of its point or ensemble and, where it has one, of its posterior."""
    panels = {}
    for row in section.rows:
        for kind, name in KINDS.items():
            if all(kind in run.pictures for run in row.runs):
                panels[row.name + name] = _pooled(row, kind)
    if not panels:
        return
    shown = dict(list(panels.items())[:PANELS])
    both = " Methods with a posterior are shown at its mean and, averaged, over samples of it." * any(
        name.endswith(KINDS["averaged_reliability"]) for name in shown
    )
    yield (
        "<h3>Reliability</h3><p>How often the final model is right when it is so sure, all seeds together. A dot's "
        f"area is its share of the test examples; red is the gap to a calibrated model, the dashed line.{both}"
        f'{_left_out(PANELS, len(panels), "diagrams")}</p><div class="charts small">'
    )
    for name, bins in shown.items():
        rows = zip(*bins.values(), strict=True)
        yield plate(f"{section.title}-reliability-{name}", drawing.draw_reliability({name: bins}), list(bins), rows)
    yield "</div>"


def _pooled(row: Row, kind: str) -> dict[str, list[float]]:
    bins = [run.pictures[kind] for run in row.runs]
    return {name: [sum(values) for values in zip(*(b[name] for b in bins), strict=True)] for name in bins[0]}


def _confusion(section: Section) -> Iterator[str]:
    """Of the best rows, all seeds together."""
    rows = [row for row in section.rows if all("confusion" in run.pictures for run in row.runs)]
    if not rows:
        return
    panels: dict[str, dict[str, Any]] = {}
    for row in rows[:MATRICES]:
        seeds = [run.pictures["confusion"] for run in row.runs]
        panels[row.name] = seeds[0] | {"counts": np.sum([one["counts"] for one in seeds], axis=0)}
    more = _left_out(MATRICES, len(rows), "settings")
    yield (
        "<h3>Confusion</h3><p>Of the test examples of a class, the percentage that the final model takes for each "
        f'class, all seeds together.{more}</p><div class="charts">'
    )
    for name, found in panels.items():
        data = [[*pair, int(count)] for pair, count in np.ndenumerate(found["counts"])]
        figure = drawing.draw_confusion({name: found})
        yield plate(f"{section.title}-confusion-{name}", figure, ["is", "taken_for", "count"], data)
    yield "</div>"


def _splits(section: Section) -> Iterator[str]:
    """One heat map for each different split."""
    found: dict[str, list[Record]] = {}
    for run in section.runs:
        if "split" in run.pictures:
            found.setdefault(str(run.summary.get("split_hash")), []).append(run)
    if not found:
        return
    more = f" {SPLITS} of {len(found)} splits are drawn." if len(found) > SPLITS else ""
    yield f'<h3>Who has what</h3><p>Training examples of each class at each client.{more}</p><div class="charts">'
    for place, runs in enumerate(list(found.values())[:SPLITS]):
        split = runs[0].pictures["split"]
        who = split.get("clients") or range(len(split["sizes"]))
        classes = split["names"] or [f"class {n}" for n in range(len(split["counts"][0]))]
        data = [[name, size, *row] for name, size, row in zip(who, split["sizes"], split["counts"], strict=True)]
        figure = drawing.draw_split(split, _split_name(runs))
        yield plate(f"{section.title}-split-{place}", figure, ["client", "examples", *classes], data, wide=True)
    yield "</div>"


def _split_name(runs: list[Record]) -> str:
    data = ", ".join(sorted({f"{run.config.get('data.name')} split by {run.config.get('split.name')}" for run in runs}))
    seeds = sorted({run.config.get("split.seed") or run.config.get("seed", 0) for run in runs})
    return f"{data}, seed {', '.join(map(str, seeds))}"
