"""The table of a report: a row per setting, its numbers over seeds, the published ones beside; as text, md or csv."""

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from fedddp.reports.numbers import (
    MEANS,
    Number,
    Reading,
    averaged,
    last_three,
    meant,
    more_is_better,
    rounds_to,
    sent,
    total,
)
from fedddp.reports.published import published
from fedddp.reports.rows import Row
from fedddp.reports.runs import Record

METRICS = (
    "accuracy",
    "averaged_accuracy",
    "nll",
    "averaged_nll",
    "ece",
    "averaged_ece",
    "rmse",
    "epsilon",
)  # shown if recorded
Value = Number | str | float | None


@dataclass(frozen=True)
class Column:
    """A name of its own, how its numbers are written, and which is best: the largest (1), the smallest (-1) or none."""

    name: str
    write: Callable[[float], str] = "{:.4f}".format
    best: int = 0
    head: str = ""  # what stands above the column, if not its name
    words: bool = False  # labels, not numbers

    @property
    def title(self) -> str:
        return self.head or self.name


@dataclass
class Table:
    columns: list[Column] = field(default_factory=list)
    rows: list[list[Value]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def add(self, column: Column, values: Sequence[Value]) -> None:
        """A column, unless no row has anything in it."""
        if any(value is not None for value in values):
            self.columns.append(column)
            self.rows = [[*row, value] for row, value in zip(self.rows or [[] for _ in values], values, strict=True)]

    def records(self) -> list[dict[str, Any]]:
        """A mapping per row, with plain numbers: the mean under the column's name, the deviation under NAME_std."""
        return [_record(self.columns, row) for row in self.rows]

    def cells(self) -> list[list[str]]:
        return [[written(column, value) for column, value in zip(self.columns, row, strict=True)] for row in self.rows]

    def text(self) -> str:
        lines = [[column.title for column in self.columns], *self.cells()]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.columns))]
        signs = ["<" if column.words else ">" for column in self.columns]
        padded = [
            "  ".join(f"{c:{s}{w}}" for c, s, w in zip(line, signs, widths, strict=True)).rstrip() for line in lines
        ]
        return "\n".join([*padded, *([""] if self.notes else []), *self.notes])

    def md(self) -> str:
        lines = [[column.title for column in self.columns], ["---"] * len(self.columns), *self.cells()]
        rows = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
        return "\n".join([*rows, *([""] if self.notes else []), *(f"- {note}" for note in self.notes)])

    def csv(self) -> str:
        """Every digit; the notes are not part of the data."""
        records, out = self.records(), io.StringIO()
        names = list(dict.fromkeys(name for record in records for name in record))
        writer = csv.DictWriter(out, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(records)
        return out.getvalue().rstrip("\n")


def build(
    rows: Sequence[Row], metrics: Sequence[str], at: Sequence[int], target: float | None, reading: Reading = MEANS
) -> Table:
    """Label, seeds, the metrics at each asked round and at the end, rounds to the target, what it cost."""
    table = Table()
    for key in rows[0].label:
        name = key.removesuffix(".name")
        table.add(Column(name, words=True), [_plain(row.label[key]) for row in rows])
    table.add(Column("seeds", "{:.0f}".format), [len(row.runs) for row in rows])
    for metric in metrics:
        for point in _points(rows, at):
            _add_metric(table, rows, metric, point, reading.best_of_three)
    if target is not None:
        name = f"rounds to {target:g}"
        found = [_of(row, lambda run: rounds_to(run, target, window=reading.window)) for row in rows]
        if reading.every_run:
            found = [number if number and number.count == number.runs else None for number in found]
        table.add(Column(name, "{:.1f}".format, -1), found)
    table.add(Column("rounds", "{:.0f}".format), [_of(row, lambda run: len(run.values)) for row in rows])
    for way in ("up", "down"):
        table.add(Column(f"bytes {way}", size), [_of(row, partial(sent, way=way)) for row in rows])
    table.add(Column("seconds", "{:.1f}".format), [_of(row, lambda run: total(run, "seconds")) for row in rows])
    return table


def recorded(runs: Sequence[Record], metrics: Sequence[str]) -> list[str]:
    """The metrics to show: those asked for, which some run must have, or the usual and the published ones."""
    there = {name for run in runs for name in run.columns}
    reported = [name for run in runs for numbers in run.published.values() for name in numbers]
    for metric in metrics:
        if metric not in there:
            raise ValueError(f"--metric {metric}: no run recorded it; choose from {', '.join(sorted(there))}")
    shown = list(metrics) or [metric for metric in dict.fromkeys([*METRICS, *reported]) if metric in there]
    if not shown:
        raise ValueError(f"no run recorded any of {', '.join(METRICS)}; name a --metric of {', '.join(sorted(there))}")
    return shown


def written(column: Column, value: Value) -> str:
    """A value as the reader sees it: mean ± deviation, and of how many runs if that is not all of them."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if not isinstance(value, Number):
        return column.write(value)
    deviation = f" ± {column.write(value.std)}" if value.std else ""
    part = f" ({value.count} of {value.runs})" if value.count < value.runs else ""
    return column.write(value.mean) + deviation + part


def size(count: float) -> str:
    """Bytes in the unit that leaves one to three digits before the point."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _add_metric(table: Table, rows: Sequence[Row], metric: str, at: int | None, best: bool = False) -> None:
    name = metric if at is None else f"{metric}@{at}"
    ours = [_of(row, lambda run: last_three(run, metric, at, best)) for row in rows]
    table.add(Column(name, best=1 if more_is_better(metric) else -1), ours)
    table.notes += _others(rows, metric, at, name)
    theirs = [published(row, metric, at) for row in rows]
    gaps = [None if o is None or t is None else o.mean - t for o, t in zip(ours, theirs, strict=True)]
    table.add(Column(f"{name} published", head="published"), theirs)
    table.add(Column(f"{name} difference", "{:+.4f}".format, head="difference"), gaps)


def _others(rows: Sequence[Row], metric: str, at: int | None, name: str) -> list[str]:
    """A line for each row whose number is not the mean of the three rounds that it should be the mean of."""
    lines = []
    for row in rows:
        wrong = [r for r in row.runs if averaged(r, metric, at) not in ([], meant(r, at))]
        if wrong:
            took, should = averaged(wrong[0], metric, at), meant(wrong[0], at)
            label = ", ".join(str(value) for value in row.label.values())
            lines.append(
                f"{name} of {label}: mean of rounds {', '.join(map(str, took))}, not of {', '.join(map(str, should))}, "
                f"which were not all evaluated; evaluation.at=[{should[-1]}] does"
            )
    return lines


def _points(rows: Sequence[Row], at: Sequence[int]) -> list[int | None]:
    """The asked rounds and the end, unless the last asked round is everybody's end."""
    ends = {len(run.values) and int(run.column("round")[-1]) for row in rows for run in row.runs}
    return [*at, *([] if at and ends == {max(at)} else [None])]


def _of(row: Row, number: Callable[[Any], float]) -> Number | None:
    return Number.of(number(run) for run in row.runs)


def _plain(value: Any) -> Value:
    return value if value is None or isinstance(value, str) else str(value)


def _record(columns: Sequence[Column], row: Sequence[Value]) -> dict[str, Any]:
    record: dict[str, Any] = {}
    for column, value in zip(columns, row, strict=True):
        if isinstance(value, Number):
            record |= {column.name: value.mean, f"{column.name}_std": value.std}
        else:
            record[column.name] = value
    return record
