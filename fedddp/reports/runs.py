"""The runs below a folder. An index beside them keeps what was read, so that only what has changed is read again.

What of a run is damaged is named in a note. A run whose configuration, summary or last round cannot be read is left
out; the others are reported.
"""

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedddp.core.files import Damaged, read_record, whole
from fedddp.core.registry import SECTIONS, gone

Array = NDArray[np.float64]

CLIENT_METRICS = (
    "client_metrics.jsonl"  # a line for each evaluation: {"round": n, "columns": {name: [a number per client]}}
)
MOST_CLIENTS = 10_000  # whose numbers are kept of each run
INDEX = ".report.safetensors"
VERSION = "5"  # of the index's layout
CALIBRATION = "calibration.json"
FILES = ("config.yaml", "metrics.jsonl", "summary.json", "pictures.json", "clients.json", CALIBRATION, CLIENT_METRICS)


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
    known = _load_index(folder)
    entries, changed = {}, False
    for path in sorted(_run_folders(folder)):
        name, stamp = str(path.relative_to(folder)), _stamp(path)
        entry = known.get(name)
        if entry is None or entry[0]["stamp"] != stamp:
            try:
                entry, changed = _parse(path, stamp), True
            except (ValueError, OSError) as error:
                say(f"{error}: the run is left out")
                continue
        entries[name] = entry
    if changed or len(entries) < len(known):
        _save_index(folder, entries)
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


Entry = tuple[dict[str, Any], Array]  # a run as the index keeps it: what is not an array, and the array


def _parse(path: Path, stamp: list[list[int]]) -> Entry:
    from fedddp.config.schema import relevant
    from fedddp.runs.claim import read_config  # torch comes with it: two seconds, only when something must be read

    plain = read_config(path / "config.yaml")
    summary, notes = _record(path / "summary.json"), list[str]()
    columns, values = _table(_rounds(path, summary, notes))
    try:
        pictures = _record(path / "pictures.json")
    except Damaged as error:
        pictures = {}
        notes.append(f"{str(error).removeprefix(f'{path}/')}; its pictures are left out")
    about = {
        "stamp": stamp,
        "config": relevant(plain),
        "named": {section: str((plain.get(section) or {}).get("name", "")) for section in SECTIONS},
        "columns": columns,
        "summary": summary,
        "published": plain.get("published") or {},
        "pictures": pictures,
        "experiment": Path(str((plain.get("asked") or {}).get("experiment", ""))).stem,
        "calibration": _calibration(path),
        "clients": _clients(path),
        "notes": notes,
    }
    return json.loads(json.dumps(about)), values  # as it will come back from the index: round numbers become text


def _calibration(path: Path) -> dict[str, Any]:
    told = _record(path / CALIBRATION)
    for kind in told.get("kinds", {}).values():
        kind.pop("scores", None)  # a count for each of ten thousand bins
    return told


def _clients(path: Path) -> dict[str, Any]:
    """Who takes part, and each client's numbers at the last evaluation; {} if that was not recorded."""
    from fedddp.records.metrics import read_metrics

    tables = read_metrics(path / CLIENT_METRICS, lambda _: None)
    columns = tables[-1].get("columns", {}) if tables else {}
    if not columns or len(next(iter(columns.values()))) > MOST_CLIENTS:
        return {}
    told = _record(path / "clients.json")
    return {"names": told.get("names", []), "examples": told.get("examples", []), "columns": columns}


def _table(records: list[dict[str, Any]]) -> tuple[list[str], Array]:
    """The numbers of all rounds as columns; what is no number stays in the file."""
    columns = list(dict.fromkeys(name for r in records for name, v in r.items() if isinstance(v, int | float)))
    rows = [[_number(record.get(column)) for column in columns] for record in records]
    return columns, np.array(rows, dtype=np.float64).reshape(len(records), len(columns))


def _number(value: Any) -> float:
    if not isinstance(value, int | float):
        return np.nan
    return value if np.isfinite(value) else np.inf


def _rounds(path: Path, summary: dict[str, Any], notes: list[str]) -> list[dict[str, Any]]:
    """The records of a run; of a finished one whose last is lost, no number would be that of its end."""
    from fedddp.records.metrics import lacking, read_metrics, spans

    def note(text: str) -> None:
        notes.append(text.removeprefix(f"{path}/"))

    records = read_metrics(path / "metrics.jsonl", note)
    lost = lacking(records, int(summary.get("rounds", 0)))
    if lost and lost[-1] == summary["rounds"]:
        raise Damaged(
            f"{path / 'metrics.jsonl'}: has lost round {spans(lost)} of a finished run; to compute them again, remove "
            "its checkpoints folder and go on with --resume"
        )
    if lost:
        note(f"metrics.jsonl has lost round {spans(lost)}; the numbers are without")
    return records


def _record(path: Path) -> dict[str, Any]:
    try:
        return read_record(path)
    except FileNotFoundError:
        return {}
    except Damaged as error:
        raise Damaged(f"{error}; the command that made the run makes it anew, with --resume") from error


def _load_index(folder: Path) -> dict[str, Entry]:
    """What an earlier report kept; nothing if there is none, or if it cannot be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / INDEX, framework="numpy") as file:
            about = file.metadata()
            if about.pop("version", None) != VERSION:
                return {}
            digest = about.pop("digest", None)
            tensors = {name: file.get_tensor(name) for name in about}
    except (OSError, SafetensorError):
        return {}
    if digest != _digest(about, tensors):
        return {}
    return {name: (json.loads(text), tensors[name]) for name, text in about.items()}


def _digest(about: dict[str, str], tensors: dict[str, Array]) -> str:
    found = blake2b(digest_size=8)
    for name in sorted(about):
        found.update(f"{name}\n{about[name]}\n{tensors[name].shape}\n".encode())
        found.update(tensors[name].tobytes())
    return found.hexdigest()


def _save_index(folder: Path, entries: dict[str, Entry]) -> None:
    """A folder that we may not write to is simply read again the next time."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    about = {name: json.dumps(entry[0]) for name, entry in entries.items()}
    tensors = {name: entry[1] for name, entry in entries.items()}
    head = {"version": VERSION, "digest": _digest(about, tensors)}
    with suppress(OSError, SafetensorError), whole(folder / INDEX) as temporary:
        save_file(tensors, temporary, {**about, **head})
