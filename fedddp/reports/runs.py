"""The runs below a folder. An index beside them keeps what was read, so that only what has changed is read again.

What of a run is damaged is named in a note. A run whose configuration, summary or last round cannot be read is left
out; the others are reported.
"""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedddp.core.registry import gone
from fedddp.reports.index import Array, load, save
from fedddp.reports.parsed import FILES, parse


@dataclass(frozen=True)
class Record:
    """One run: its settings, a column of numbers per metric, and what it left when it was done."""

    folder: Path
    config: dict[str, Any]  # by dotted key, only what can change a result
    columns: list[str]
    values: Array  # [rounds, columns]; NaN where a round has no such number, infinity where it was not finite
    named: dict[str, str] = field(default_factory=dict)  # what its method, solver, ... were, in full
    summary: dict[str, Any] = field(default_factory=dict)  # empty until the run is done
    published: dict[str, Any] = field(default_factory=dict)
    pictures: dict[str, Any] = field(default_factory=dict)
    experiment: str = ""  # by its name, where the run was asked for by one
    calibration: dict[str, Any] = field(default_factory=dict)  # what it learned of its answers, but for the scores
    clients: dict[str, Any] = field(default_factory=dict)  # names, examples and the last evaluation's columns

    def missing(self) -> list[str]:
        """The classes that made the run and are not there any more; a run reports without them."""
        return [f"{section}={name}" for section, name in self.named.items() if name and gone(section, name)]

    def column(self, name: str) -> Array:
        """A number for each recorded round; all NaN if the run never had it."""
        if name not in self.columns:
            return np.full(len(self.values), np.nan)
        return self.values[:, self.columns.index(name)]

    def series(self, name: str) -> tuple[Array, Array]:
        """The rounds that have this number, and the numbers."""
        values = self.column(name)
        there = ~np.isnan(values)
        return self.column("round")[there], values[there]


def read(folders: Sequence[Path | str], notes: list[str] | None = None) -> list[Record]:
    """Every run below the folders, once, in the order of their paths.

    What is damaged is added to `notes`, or said on stderr if there are none.
    """
    said: list[str] = []
    found = {run.folder.resolve(): run for folder in folders for run in _below(Path(folder), said.append)}
    said = list(dict.fromkeys(said))
    if not found and said:
        raise ValueError("; ".join(said))
    if not found:
        raise ValueError(f"{', '.join(map(str, folders))}: no run below (a folder with config.yaml and metrics.jsonl)")
    if notes is not None:
        notes += said
    else:
        for note in said:
            print(f"note: {note}", file=sys.stderr)
    return list(found.values())


def _below(folder: Path, say: Callable[[str], None]) -> Iterator[Record]:
    if not folder.is_dir():
        raise ValueError(f"{folder}: no such folder")
    known = load(folder)
    entries, changed = {}, False
    for path in sorted(_run_folders(folder)):
        name, stamp = str(path.relative_to(folder)), _stamp(path)
        entry = known.get(name)
        if entry is None or entry[0]["stamp"] != stamp:
            try:
                entry, changed = parse(path, stamp), True
            except (ValueError, OSError) as error:
                say(f"{error}: the run is left out")
                continue
        entries[name] = entry
    if changed or len(entries) < len(known):
        save(folder, entries)
    for name, (about, values) in entries.items():
        for note in about["notes"]:
            say(f"{folder / name}: {note}")
        told = {key: value for key, value in about.items() if key not in ("stamp", "notes")}
        yield Record(folder / name, values=values, **told)


def _run_folders(folder: Path) -> Iterator[Path]:
    for path, inner, files in os.walk(folder):
        if "config.yaml" in files and {"metrics.jsonl", "summary.json"} & {*files}:
            inner.clear()  # checkpoints hold no runs
            yield Path(path)


def _stamp(path: Path) -> list[list[int]]:
    """Size and time of each file: another stamp means that something was written."""
    files = [path / name for name in FILES]
    return [[(s := file.stat()).st_size, s.st_mtime_ns] if file.exists() else [] for file in files]
