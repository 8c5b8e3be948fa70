"""Reading results: runs below folders as a table, a page or a pandas frame.

from fedddp import reports
reports.load("runs/digits")                                     # a pandas frame, a row per run
reports.load("runs/digits", every_round=True)                   # a row per run and round
print(reports.make(["runs/digits"], at=[10, 25]).table.text())  # what `fedddp report` prints
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedddp.reports import table as tables
from fedddp.reports.frame import load
from fedddp.reports.numbers import MEANS, Number, Reading, last_three, more_is_better
from fedddp.reports.rows import Row, best, group
from fedddp.reports.runs import Record, read
from fedddp.reports.sections import Section, sections
from fedddp.reports.table import Table

__all__ = ["Reading", "Report", "load", "make", "write", "written"]


@dataclass(frozen=True)
class Report:
    """Rows of runs, the metrics looked at, and the table of both."""

    rows: list[Row]
    metrics: list[str]
    table: Table
    sections: list[Section]  # an experiment each, for the page
    notes: list[str]  # on all runs


def make(
    folders: Sequence[Path | str],
    by: Sequence[str] = ("method",),
    at: Sequence[int] = (),
    metrics: Sequence[str] = (),
    best_over: Sequence[str] = (),
    target: float | None = None,
    reading: Reading = MEANS,
) -> Report:
    """All finished runs below the folders, in rows of equal settings, the best first; see `fedddp report --help`."""
    runs, notes = _finished(folders)
    shown = tables.recorded(runs, metrics)
    if best_over:
        runs, choices = best(runs, best_over, shown[0])
        notes += choices
    rows = sorted(group(runs, [*by, *best_over]), key=lambda row: _rank(row, shown[0]))
    table = tables.build(rows, shown, sorted(at), target, reading)
    own = table.notes
    table.notes = notes + own
    parts = sections(rows, shown, at, target, reading)
    return Report(rows, shown, table, parts, notes)


FORMATS = ("table", "md", "csv", "html")


def written(report: Report, kind: str, title: str = "") -> str:
    """As a plain table, Markdown, CSV or a page of HTML."""
    if kind == "html":
        from fedddp.reports.page import page

        return page(report, title)
    return {"table": report.table.text, "md": report.table.md, "csv": report.table.csv}[kind]()


def write(report: Report, out: Path, title: str, kind: str = "") -> None:
    """Into a file, whose name tells the format if nothing else does."""
    suffix = out.suffix.lstrip(".")
    text = written(report, kind or (suffix if suffix in FORMATS else "table"), title)
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(text + "\n", encoding="utf-8")


def _finished(folders: Sequence[Path | str]) -> tuple[list[Record], list[str]]:
    """The runs that are done, and a line on those that are not: their last rounds are not their end."""
    notes: list[str] = []
    runs = read(folders, notes)
    done = [run for run in runs if run.summary]
    if not done:
        raise ValueError(f"{', '.join(map(str, folders))}: none of {len(runs)} runs is done (no summary.json)")
    rest = len(runs) - len(done)
    notes += [f"{rest} of {len(runs)} runs left out: not done yet"] if rest else []
    missing = sorted({name for run in done for name in run.missing() if not name.endswith("=given")})
    return done, notes + [f"{name}: is gone; its runs cannot go on, and keep a copy in source/" for name in missing]


def _rank(row: Row, metric: str) -> float:
    number = Number.of(last_three(run, metric) for run in row.runs)
    if number is None:
        return float("inf")
    return -number.mean if more_is_better(metric) else number.mean
