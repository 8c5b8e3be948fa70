"""What a published table or figure is made of, as a file in configs/reproduce says.

    about: '"FedBEns", Table 1: one shot, Fashion-MNIST'
    columns:
      Dirichlet 0.1: {experiment: fedbens_fmnist_a01}                  # and the other fields of Column
    rows:
      FedBEns, kron: {set: {method: fedbens}, minutes: 9}              # minutes of one run on one core
    seeds: [{seed: 1}, {seed: 2}]

A cell is the mean over seeds of the row's runs of the column's experiment; its published number stands in that
experiment's file, or in the column. It is the mean of three rounds, or of the column's `window`; with `best: true` the
best of them, with `target: 0.75` the number of rounds until the metric is so good, which a row has if every run of it
gets there. A figure has `figure:` instead of columns, and `options:` of its own.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from fedddp.config.loading import folder
from fedddp.config.written import load
from fedddp.core.check import check, hint

Settings = dict[str, Any]


@dataclass(frozen=True)
class Column:
    experiment: str
    metric: str = "accuracy"
    at: int | None = None  # the round; none: the end
    best: bool = False  # the best of the last three rounds instead of their mean
    target: float | None = None  # rounds until the metric is so good, instead of the metric
    window: int | None = None  # rounds that are averaged: the last 3, with a target 1
    unit: float = 1.0  # of the metric, that the table's numbers are in
    set: Settings = field(default_factory=dict)
    # by row, where the file has none; null: there is none
    published: dict[str, float] | None = field(default_factory=dict)
    deviation: dict[str, float] = field(default_factory=dict)  # the published one, by row


@dataclass(frozen=True)
class Row:
    set: Settings
    minutes: float = 0.0  # of one run


@dataclass(frozen=True)
class Protocol:
    name: str
    about: str
    columns: dict[str, Column] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)
    seeds: list[Settings] = field(default_factory=list)
    figure: str = ""
    options: Settings = field(default_factory=dict)  # of a figure
    minutes: float = 0.0  # of a figure

    def cells(self) -> Iterator[tuple[str, str]]:
        """(row, column)"""
        return ((row, column) for row in self.rows for column in self.columns)

    def part(self, rows: Sequence[str] = (), columns: Sequence[str] = (), seeds: int = 0) -> "Protocol":
        """These rows and columns alone, with so many of the seeds; all of what is not said."""
        check("--seeds", seeds, 0 <= seeds <= len(self.seeds), f"from 1 to {len(self.seeds)}, as {self.name} has")
        return replace(
            self,
            rows={name: self.rows[name] for name in self._known("--rows", rows, self.rows)},
            columns={name: self.columns[name] for name in self._known("--columns", columns, self.columns)},
            seeds=self.seeds[: seeds or None],
        )

    def _known(self, option: str, asked: Sequence[str], there: Mapping[str, Any]) -> Sequence[str]:
        for name in asked:
            if name not in there:
                raise ValueError(f"{option} {name}: not in {self.name}; {hint(name, list(there))}")
        return asked or list(there)

    def long(self, runs: Mapping[str, int]) -> str:
        """What so many runs of each row, or the figure, take on one core."""
        minutes = self.minutes if self.figure else sum(self.rows[row].minutes * n for row, n in runs.items())
        return f"{minutes / 60:.0f} hours" if minutes >= 90 else f"{max(1, minutes):.0f} minutes"

    def words(self, row: str, column: str, seed: Settings) -> list[str]:
        """The settings of one run as on the command line."""
        every = {**self.columns[column].set, **self.rows[row].set, **seed}
        return [f"{key}={_word(value)}" for key, value in every.items()]

    def command(self, row: str, column: str) -> str:
        """What makes a cell's runs by hand."""
        each = " ".join(self.words(row, column, {}))
        seeds = "; ".join(" ".join(f"{key}={value}" for key, value in seed.items()) for seed in self.seeds)
        return f"fedddp run {self.columns[column].experiment} {each} --ranks 1, with {seeds}"


def names() -> list[str]:
    return sorted(path.stem for path in folder("reproduce").glob("*.yaml"))


@cache
def read(name: str) -> Protocol:
    if name not in names():
        raise ValueError(f"reproduce {name}: unknown; {hint(name, names())}")
    written = load(folder("reproduce") / f"{name}.yaml")
    columns = {str(key): Column(**value) for key, value in written.pop("columns", {}).items()}
    rows = {str(key): Row(**value) for key, value in written.pop("rows", {}).items()}
    return Protocol(name, columns=columns, rows=rows, **written)


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
