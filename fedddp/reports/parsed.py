"""One run's files as an entry of the index. What is damaged, but not needed, is named in a note."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from fedddp.core.files import Damaged, read_record
from fedddp.core.registry import SECTIONS
from fedddp.reports.index import Array, Entry

CLIENT_METRICS = "client_metrics.jsonl"  # a line per evaluation: {"round": n, "columns": {name: [a number per client]}}
CALIBRATION = "calibration.json"
FILES = ("config.yaml", "metrics.jsonl", "summary.json", "pictures.json", "clients.json", CALIBRATION, CLIENT_METRICS)
MOST_CLIENTS = 10_000  # whose numbers are kept of each run


def parse(path: Path, stamp: list[list[int]]) -> Entry:
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
