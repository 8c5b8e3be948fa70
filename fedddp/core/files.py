"""Files that are whole or not there: written under another name and renamed."""

import json
import os
from pathlib import Path


def write_text(path: Path, text: str) -> None:
    """A reader never sees half of it; two writers at once leave what one of them wrote."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def write_json(path: Path, value: object) -> None:
    write_text(path, json.dumps(value, indent=2) + "\n")
