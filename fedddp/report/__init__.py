"""Reading results: runs below folders as a table, a page or a pandas frame.

from fedddp import report
report.load("runs/digits")                                     # a pandas frame, a row per run
report.load("runs/digits", every_round=True)                   # a row per run and round
print(report.make(["runs/digits"], at=[10, 25]).table.text())  # what `fedddp report` prints
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedddp.report import table as tables
from fedddp.report.frame import load
from fedddp.report.numbers import Number, last_three, more_is_better
from fedddp.report.rows import Row, best, group
from fedddp.report.runs import Run, read
from fedddp.report.table import Table

__all__ = ["Report", "load", "make"]


@dataclass(frozen=True)
class Report:
    """Rows of runs, the metrics looked at, and the table of both."""

    rows: list[Row]
    metrics: list[str]
    table: Table


def make(
    folders: Sequence[Path | str],
    by: Sequence[str] = ("method",),
    at: Sequence[int] = (),
    metrics: Sequence[str] = (),
    best_over: Sequence[str] = (),
    target: float | None = None,
) -> Report:
    """All finished runs below the folders, in rows of equal settings, the best first; see `fedddp report --help`."""
    runs, notes = _finished(folders)
    shown = tables.recorded(runs, metrics)
    if best_over:
        runs, choices = best(runs, best_over, shown[0])
        notes += choices
    rows = sorted(group(runs, [*by, *best_over]), key=lambda row: _rank(row, shown[0]))
    table = tables.build(rows, shown, sorted(at), target)
    table.notes = notes
    return Report(rows, shown, table)


def _finished(folders: Sequence[Path | str]) -> tuple[list[Run], list[str]]:
    """The runs that are done, and a line on those that are not: their last rounds are not their end."""
    runs = read(folders)
    done = [run for run in runs if run.summary]
    if not done:
        raise ValueError(f"{', '.join(map(str, folders))}: none of {len(runs)} runs is done (no summary.json)")
    rest = len(runs) - len(done)
    return done, [f"{rest} of {len(runs)} runs left out: not done yet"] if rest else []


def _rank(row: Row, metric: str) -> float:
    number = Number.of(last_three(run, metric) for run in row.runs)
    if number is None:
        return float("inf")
    return -number.mean if more_is_better(metric) else number.mean
