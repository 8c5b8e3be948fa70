"""Every number that was found: {table: {row: {column: result}}}, in one file that is committed."""

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedddp.config.loading import folder
from fedddp.core.files import write_text
from fedddp.reports.numbers import Number


@dataclass(frozen=True)
class Result:
    """One cell: a value per seed, or of older runs only their mean and deviation."""

    command: str
    seeds: list[str]
    date: str
    values: list[float | None] = field(default_factory=list)  # none: the run did not reach the column's target
    mean: float | None = None
    std: float | None = None
    note: str = ""  # what differs from the protocol

    @property
    def number(self) -> Number | None:
        """None if some run did not reach the target."""
        if self.mean is not None:
            return Number(self.mean, self.std, len(self.seeds), len(self.seeds))
        return None if None in self.values else Number.of(value for value in self.values if value is not None)


Results = dict[str, dict[str, dict[str, Result]]]


def file() -> Path:
    """The committed one: in the source tree, or as it came with the package."""
    return folder("reproduce") / "results.json"


def read(path: Path | None = None) -> Results:
    path = path or file()
    plain: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {}
    return {
        table: {row: {column: Result(**result) for column, result in cells.items()} for row, cells in rows.items()}
        for table, rows in plain.items()
    }


def write(results: Results, path: Path | None = None) -> None:
    plain = {
        table: {row: {column: _plain(result) for column, result in cells.items()} for row, cells in rows.items()}
        for table, rows in sorted(results.items())
    }
    write_text(path or file(), json.dumps(plain, indent=1, ensure_ascii=False) + "\n")


def _plain(result: Result) -> dict[str, Any]:
    return {key: value for key, value in asdict(result).items() if value not in (None, [], "")}
