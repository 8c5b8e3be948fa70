"""metrics.jsonl: a line for each round, each with a digest of itself.

What cannot be read is named by its line and left out; the rounds behind it stay.
"""

import json
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from fedddp.core.files import SEAL, intact, sealed, write_text

Say = Callable[[str], None]


def _warn(text: str) -> None:
    warnings.warn(text, stacklevel=3)


def line(record: dict[str, Any]) -> str:
    return json.dumps(sealed(record)) + "\n"


def read_metrics(path: Path, say: Say = _warn) -> list[dict[str, Any]]:
    """Every round that can be read; a last line cut short by a kill is left out without a word."""
    return parse(path.read_bytes(), path, say) if path.exists() else []


def parse(data: bytes, path: Path, say: Say = _warn, first: int = 1) -> list[dict[str, Any]]:
    """The records in a piece of metrics.jsonl; `first` is the number of its first line, 0 where nobody knows."""
    return [record for _, record in _lines(data, path, say, first)]


def _lines(data: bytes, path: Path, say: Say, first: int = 1) -> Iterator[tuple[bytes, dict[str, Any]]]:
    texts = data.split(b"\n")
    for number, text in enumerate(texts, first):
        record = _record(text)
        if record is not None:
            yield text, record
        elif text.strip() and number < first + len(texts) - 1:  # behind the last line break: cut short by a kill
            say(f"{path}: {f'line {number}' if first else 'a line near its end'} is damaged and left out")


def _record(text: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    if not isinstance(found, dict) or not isinstance(found.get("round"), int) or not intact(found):
        return None
    found.pop(SEAL, None)
    return found


def lacking(records: Iterable[dict[str, Any]], rounds: int) -> list[int]:
    """The rounds up to `rounds` that have no record."""
    there = {record["round"] for record in records}
    return [number for number in range(1, rounds + 1) if number not in there]


def spans(numbers: list[int]) -> str:
    """3, 5 to 9"""
    there = set(numbers)
    starts, ends = [n for n in numbers if n - 1 not in there], [n for n in numbers if n + 1 not in there]
    return ", ".join(f"{a} to {b}" if b > a else str(a) for a, b in zip(starts, ends, strict=True))


def cut_metrics(path: Path, done: int, say: Say = _warn, every: bool = True) -> None:
    """Keep the rounds that the checkpoint has; the file is replaced whole, so that a kill loses none.

    `every`: each round has a line, so that missing ones are worth a word.
    """
    if not path.exists() and not (done and every):
        return
    data = path.read_bytes() if path.exists() else b""
    kept = [(text, record) for text, record in _lines(data, path, say) if record["round"] <= done]
    missing = lacking((record for _, record in kept), done)
    if missing and every:
        say(f"{path}: lacks round {spans(missing)} of the {done} that the checkpoint has; the run goes on without")
    whole = b"".join(text + b"\n" for text, _ in kept)
    if whole != data:
        write_text(path, whole.decode())
