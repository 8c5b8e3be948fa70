"""The runs that a table still lacks, and its numbers from those that are done."""

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib import import_module
from math import isfinite
from pathlib import Path

from fedddp import reports
from fedddp.jobs import sweep
from fedddp.jobs.options import Options
from fedddp.jobs.planned import Planned, plan
from fedddp.reports.numbers import LAST, last_three, rounds_to
from fedddp.reports.runs import Record
from fedddp.reports.runs import read as read_runs
from fedddp.reproduce.protocol import Column, Protocol
from fedddp.reproduce.results import Result, Results

SUMMARY = "summary.json"  # what a run leaves when it is done


def missing(protocol: Protocol, out: Path) -> list[tuple[str, str, list[str]]]:
    """(row, experiment, words) of every run that is not done below `out`, once, row by row."""
    found: dict[Path, tuple[str, str, list[str]]] = {}
    for row, column in protocol.cells():
        for seed, run in zip(protocol.seeds, _planned(protocol, row, column, out), strict=True):
            if not (run.folder / SUMMARY).is_file():
                words = protocol.words(row, column, seed)
                found.setdefault(run.folder, (row, protocol.columns[column].experiment, words))
    return list(found.values())


def count(protocol: Protocol, out: Path) -> dict[str, int]:
    """The missing runs of each row."""
    rows = [row for row, _, _ in missing(protocol, out)]
    return {row: rows.count(row) for row in protocol.rows}


def run(protocol: Protocol, out: Path, ranks: int, max_parallel: int | None) -> int:
    """Everything that is missing, an experiment at a time; 0 if all ended well. The same call goes on after a stop."""
    by: dict[str, list[list[str]]] = {}
    for _, experiment, words in missing(protocol, out):
        by.setdefault(experiment, []).append([*words, f"federation.fits={(out / 'fits').absolute()}"])
    code = 0
    for experiment, points in by.items():
        options = Options(ranks=ranks, max_parallel=max_parallel, out=out / experiment, wait=True)
        code = sweep.launch(options, experiment, points) or code
        if code == 130:
            break
    return code


def draw(protocol: Protocol, out: Path) -> Path:
    """The figure, as `fedddp figure` draws it."""
    picture = out / f"{protocol.name}.png"
    picture.parent.mkdir(parents=True, exist_ok=True)
    import_module(f"fedddp.figures.{protocol.figure}").draw(picture, **protocol.options)
    return picture


def page(protocol: Protocol, out: Path) -> str:
    """A page of all runs of the table's experiments, which a browser shows with curves and published numbers."""
    experiments = dict.fromkeys(column.experiment for column in protocol.columns.values())
    folders = [out / name for name in experiments if any((out / name).glob(f"*/{SUMMARY}"))]
    if not folders:
        return "no run is done yet"
    at = sorted({column.at for column in protocol.columns.values() if column.at})
    file = out / f"{protocol.name}.html"
    reports.write(reports.make(folders, at=at), file, protocol.about)
    return str(file)


def collect(protocol: Protocol, out: Path, results: Results) -> Results:
    """The results with every cell of which some seed is done; a cell that has more seeds already stays."""
    own = {row: dict(cells) for row, cells in results.get(protocol.name, {}).items()}
    if protocol.figure:
        own = {"figure": {protocol.figure: _drawn(protocol)}}
    for row, column in protocol.cells():
        folders = [run.folder for run in _planned(protocol, row, column, out)]
        done = [(seed, f) for seed, f in zip(protocol.seeds, folders, strict=True) if (f / SUMMARY).is_file()]
        old = own.get(row, {}).get(column)
        if done and (old is None or len(done) >= len(old.seeds)):
            own.setdefault(row, {})[column] = _result(protocol, row, column, done)
    return {**results, protocol.name: own} if own else results


def _result(protocol: Protocol, row: str, column: str, done: Sequence[tuple[dict[str, int], Path]]) -> Result:
    place = protocol.columns[column]
    records = list(_records([folder for _, folder in done]))
    values = [read_off(record, place) for record in records]
    return Result(
        command=protocol.command(row, column),
        seeds=[" ".join(f"{key}={value}" for key, value in seed.items()) for seed, _ in done],
        date=max(_day(folder / SUMMARY) for _, folder in done),
        values=[round(value, 6) if isfinite(value) else None for value in values],
    )


def read_off(record: Record, place: Column) -> float:
    """What a column says of a run; NaN if it has not come so far."""
    if place.target is not None:
        return rounds_to(record, place.target, place.metric, place.window or 1)
    return last_three(record, place.metric, place.at, place.best, place.window or LAST) / place.unit


def _drawn(protocol: Protocol) -> Result:
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    return Result(command=f"fedddp figure {protocol.figure}", seeds=["0"], date=today, mean=1.0)


def _records(folders: Sequence[Path]) -> Iterator[Record]:
    return (read_runs([folder])[0] for folder in folders)


def _day(path: Path) -> str:
    return f"{datetime.fromtimestamp(path.stat().st_mtime, UTC):%Y-%m-%d}"


def _planned(protocol: Protocol, row: str, column: str, out: Path) -> list[Planned]:
    """The run of each seed; seeds that make no difference to it share one."""
    experiment = protocol.columns[column].experiment
    return [plan(experiment, [protocol.words(row, column, seed)], out / experiment)[0] for seed in protocol.seeds]
