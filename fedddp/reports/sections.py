"""Runs of one experiment together: the same data, split alike. What is best and what axes hold is asked within one."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedddp.reports import table as tables
from fedddp.reports.numbers import Reading
from fedddp.reports.rows import Row, is_seed, regrouped
from fedddp.reports.runs import Record
from fedddp.reports.table import Table

PROBLEM = ("data.", "split.")  # what is solved, rather than how
APART = ("data.validation", "data.keep_validation")  # held out to choose settings by: the problem is the same


@dataclass(frozen=True)
class Section:
    """One experiment: its rows, best first, the metrics that they have, and the table of both."""

    title: str
    rows: list[Row]
    metrics: list[str]
    table: Table
    data: str = ""  # the table as CSV, with every label in a column of its own
    own: dict[int, str] = field(default_factory=dict)  # of a row, by its place: settings that only its method has

    @property
    def runs(self) -> list[Record]:
        return [run for row in self.rows for run in row.runs]


def sections(
    rows: Sequence[Row], metrics: Sequence[str], at: Sequence[int], target: float | None, reading: Reading
) -> list[Section]:
    """In the order of their titles; `rows` come best first."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(_problem(row.runs[0]), []).append(row)
    titles = _titles({key: members[0].runs[0] for key, members in found.items()})
    made = [_section(titles[key], members, metrics, at, target, reading) for key, members in found.items()]
    return sorted(made, key=lambda section: section.title)


def _section(
    title: str,
    rows: list[Row],
    metrics: Sequence[str],
    at: Sequence[int],
    target: float | None,
    reading: Reading,
) -> Section:
    runs = [run for row in rows for run in row.runs]
    there = {name for run in runs for name in run.columns}
    shown = [metric for metric in metrics if metric in there] or tables.recorded(runs, ())
    rows = regrouped(rows)
    own = _own(rows)
    kept = [Row({key: row.label[key] for key in row.label if key not in own}, row.runs) for row in rows]
    beside = {
        place: ", ".join(f"{key.split('.')[-1]} {row.label[key]}" for key in own if row.label[key] is not None)
        for place, row in enumerate(rows)
    }
    table = tables.build(kept, shown, sorted(at), target, reading)
    data = tables.build(rows, shown, sorted(at), target, reading).csv()
    return Section(title, rows, shown, table, data, {place: text for place, text in beside.items() if text})


def _own(rows: Sequence[Row]) -> list[str]:
    """Keys of labels that only one of several methods has: they are shown beside its name, not in a column."""
    methods = {row.label.get("method.name") for row in rows}
    found = []
    for key in rows[0].label:
        have = {row.label.get("method.name") for row in rows if row.label[key] is not None}
        if key != "method.name" and len(have) == 1 < len(methods):
            found.append(key)
    return found


def _settings(run: Record) -> dict[str, Any]:
    return {k: v for k, v in run.config.items() if k.startswith(PROBLEM) and k not in APART and not is_seed(k)}


def _problem(run: Record) -> str:
    return json.dumps(_settings(run), sort_keys=True)


def _titles(problems: dict[str, Record]) -> dict[str, str]:
    """The experiment's name or the data's, and by what those differ that would be called the same."""
    plain = {key: _plain(run) for key, run in problems.items()}
    found = {}
    for key, run in problems.items():
        rivals = [_settings(problems[other]) for other, name in plain.items() if name == plain[key] and other != key]
        mine = _settings(run)
        differ = [k for k in mine if any(rival.get(k) != mine[k] for rival in rivals)]
        words = ", ".join(f"{k.split('.')[-1]} {mine[k]}" for k in differ)
        found[key] = f"{plain[key]} ({words})" if words else plain[key]
    return found


def _plain(run: Record) -> str:
    return run.experiment or f"{run.config.get('data.name', 'data')} split by {run.config.get('split.name', 'itself')}"
