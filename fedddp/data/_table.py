"""Tables of text as numbers: numbers stay, categories become one 0/1 column each, rows with gaps are left out."""

import csv
from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path

import torch
from torch import Tensor

from fedddp.data._files import reading

MOST = 200_000_000  # numbers that a column of texts may become
MISSING = {"", "?", "na", "n/a", "nan", "null", "none"}


def read_rows(path: Path, delimiter: str = ",") -> list[list[str]]:
    """The cells of every line that has any, all lines equally long."""
    with reading(path, "a table"), path.open(newline="", encoding="utf-8-sig") as file:
        lines = [[cell.strip() for cell in line] for line in csv.reader(file, delimiter=delimiter)]
        rows = [line for line in lines if any(line)]
        if not rows:
            raise ValueError("holds no rows")
        for number, row in enumerate(rows, start=1):
            if len(row) != len(rows[0]):
                raise ValueError(f"row {number} has {len(row)} cells, the first has {len(rows[0])}")
        return rows


def complete(rows: Sequence[list[str]]) -> list[list[str]]:
    """The rows without a missing value."""
    return [row for row in rows if not any(cell.lower() in MISSING for cell in row)]


def encode(columns: Sequence[Sequence[str]], names: Sequence[str] = ()) -> tuple[Tensor, Tensor]:
    """Inputs [N, F] and which columns [F] are numbers; a category's columns are in the order of its sorted values."""
    parts, numeric = [], []
    for column, name in zip_longest(columns, names):
        found = numbers(column, name)
        part = one_hot(column, name) if found is None else found.unsqueeze(1)
        parts.append(part)
        numeric += [found is not None] * part.shape[1]
    return torch.cat(parts, 1), torch.tensor(numeric)


def one_hot(column: Sequence[str], name: str | None = None) -> Tensor:
    values = sorted(set(column))
    if len(values) * len(column) > MOST:
        raise ValueError(f"column {name}: holds {len(values)} different texts, too many for a 0/1 column each; drop it")
    return torch.tensor([[float(cell == value) for value in values] for cell in column])


def labels(column: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Class numbers [N] and the names of the classes, numbers in their order and words by the alphabet."""
    names = sorted(set(column)) if numbers(column) is None else sorted(set(column), key=float)
    number = {name: label for label, name in enumerate(names)}
    return torch.tensor([number[cell] for cell in column]), tuple(names)


def numbers(column: Sequence[str], name: str | None = None) -> Tensor | None:
    """The cells as numbers, if all of them are."""
    try:
        found = torch.tensor([float(cell) for cell in column])
    except ValueError:
        return None
    if not bool(found.isfinite().all()):
        bad = column[int(found.isfinite().int().argmin())]
        raise ValueError(f"column {name}: holds {bad}, which float32 cannot hold; leave such rows out")
    return found
