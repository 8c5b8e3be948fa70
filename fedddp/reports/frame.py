"""Runs as a pandas frame."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedddp.reports.numbers import last_three, total
from fedddp.reports.runs import Record, read

SUMMED = ("bytes", "seconds")  # over rounds; of the other numbers, the mean of the last three rounds is taken


def load(*folders: Path | str, every_round: bool = False) -> Any:
    """A pandas frame, a row per run below the folders: settings, the mean of the last three rounds of each metric.

    With `every_round`, a row per run and round.
    """
    try:
        import pandas
    except ImportError as error:
        raise ImportError("fedddp.reports.load returns a pandas frame: install pandas (pip install pandas)") from error
    rows = _round_rows if every_round else _run_row
    return pandas.DataFrame([row for run in read(folders) for row in rows(run)])


def _run_row(run: Record) -> Iterator[dict[str, Any]]:
    names = [name for name in run.columns if name != "round"]
    numbers = {name: total(run, name) if name.startswith(SUMMED) else last_three(run, name) for name in names}
    yield {**_about(run), "done": bool(run.summary), "rounds": len(run.values), **numbers}


def _round_rows(run: Record) -> Iterator[dict[str, Any]]:
    for values in run.values:
        yield {**_about(run), **dict(zip(run.columns, values, strict=True))}


def _about(run: Record) -> dict[str, Any]:
    return {"folder": str(run.folder), **run.config}
