"""Tables of text as numbers: numbers stay, categories become one 0/1 column each, rows with gaps are left out."""

import csv
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from fedddp.data._files import reading

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


def encode(columns: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor]:
    """Inputs [N, F] and which columns [F] are numbers; a category's columns are in the order of its sorted values."""
    parts, numeric = [], []
    for column in columns:
        found = numbers(column)
        part = one_hot(column) if found is None else found.unsqueeze(1)
        parts.append(part)
        numeric += [found is not None] * part.shape[1]
    return torch.cat(parts, 1), torch.tensor(numeric)


def one_hot(column: Sequence[str]) -> Tensor:
    values = sorted(set(column))
    return torch.tensor([[float(cell == value) for value in values] for cell in column])


def labels(column: Sequence[str]) -> tuple[Tensor, tuple[str, ...]]:
    """Class numbers [N] and the names of the classes, numbers in their order and words by the alphabet."""
    names = sorted(set(column)) if numbers(column) is None else sorted(set(column), key=float)
    number = {name: label for label, name in enumerate(names)}
    return torch.tensor([number[cell] for cell in column]), tuple(names)


def numbers(column: Sequence[str]) -> Tensor | None:
    """The cells as numbers, if all of them are."""
    try:
        return torch.tensor([float(cell) for cell in column])
    except ValueError:
        return None
