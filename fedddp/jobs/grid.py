"""A grid of settings as a list of points: `seed=0..2 local.lr=0.1,0.5` is six, each a list of key=value words."""

import itertools
import re
from collections.abc import Sequence
from math import prod
from pathlib import Path

from fedddp.config import written
from fedddp.config.schema import flatten
from fedddp.core.check import shown

Point = list[str]
RANGE = re.compile(r"(-?\d{1,18})\.\.(-?\d{1,18})")
MOST = 100_000  # points of a grid: more were hardly meant


def points(words: Sequence[str], file: Path | None = None) -> list[Point]:
    """Every combination of the words' values, after those of each point of the file, if there is one."""
    keys = [word.partition("=")[0] for word in words]
    for key in keys:
        if keys.count(key) > 1:
            raise ValueError(f"{key}: given twice; write its values as {key}=A,B")
    given = read(file) if file else [[]]
    choices = [_choices(word) for word in words]
    _refuse_many(" ".join(words), len(given) * prod(map(len, choices)))
    grid = [list(point) for point in itertools.product(*choices)]
    return [[*first, *rest] for first in given for rest in grid]


def _choices(word: str) -> list[str]:
    key, _, text = word.partition("=")
    return [f"{key}={value}" for value in values(text)]


def _refuse_many(what: str, count: int) -> None:
    if count > MOST:
        raise ValueError(
            f"{shown(what)}: a grid of {count:,} points, more than {MOST:,}; ask for fewer values at a time"
        )


def values(text: str) -> list[str]:
    """`0.1,0.5` -> two, `0..2` -> three, `[64],[64,32]` -> two: commas inside brackets or quotes do not separate."""
    found = []
    for part in _split(text):
        ends = RANGE.fullmatch(part)
        if ends is None:
            found.append(part)
            continue
        first, last = int(ends[1]), int(ends[2])
        if last < first:
            raise ValueError(f"{part}: an empty range; write it as {last}..{first}")
        _refuse_many(part, last - first + 1)
        found += [str(number) for number in range(first, last + 1)]
    return found


def _split(text: str) -> list[str]:
    parts, depth, quote = [""], 0, ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        depth += (letter in "[{(") - (letter in "]})") if not quote else 0
        if letter == "," and not depth and not quote:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def read(path: Path) -> list[Point]:
    """A YAML list of points, each a mapping of settings: `- {method: fedprox, method.mu: 0.1}`."""
    if not path.is_file():
        raise ValueError(f"{path}: cannot be read: no such file")
    listed = written.load(path)
    if not isinstance(listed, list) or not listed or not all(isinstance(point, dict) for point in listed):
        raise ValueError(f"{path}: must be a YAML list of points such as - {{method: fedprox, seed: 1}}")
    return [[f"{key}={_written(value)}" for key, value in flatten(point)] for point in listed]


def _written(value: object) -> str:
    """As on the command line; lists and null in YAML's own words."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
