"""Finished runs as a table."""

import json
from pathlib import Path
from typing import Any

COLUMNS = ("accuracy", "nll", "ece", "rmse")


def summaries(folders: list[Path]) -> list[dict[str, Any]]:
    """The summary of every finished run below the folders."""
    paths = sorted(path for folder in folders for path in folder.rglob("summary.json"))
    if not paths:
        raise ValueError(f"{', '.join(map(str, folders))}: no finished run (summary.json) below")
    return [json.loads(path.read_text()) | {"folder": str(path.parent)} for path in paths]


def table(folders: list[Path]) -> str:
    rows = sorted(summaries(folders), key=lambda row: -row.get("accuracy", 0.0))
    columns = [name for name in COLUMNS if any(name in row for row in rows)]
    lines = ["method".ljust(18) + "".join(name.rjust(10) for name in columns) + "rounds".rjust(8) + "seconds".rjust(9)]
    for row in rows:
        numbers = "".join(f"{row[name]:10.4f}" if name in row else " " * 10 for name in columns)
        lines.append(f"{row['method']:<18}{numbers}{row['rounds']:>8}{row['seconds']:>9.1f}  {row['folder']}")
    return "\n".join(lines)
