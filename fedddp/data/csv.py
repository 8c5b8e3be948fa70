"""A table of your own: numbers standardised, categories one 0/1 column each (data.file, data.target).

Rows with a missing value (empty, ?, NA, NaN, null) are left out. A column is a number if all its cells are. The test
rows are a second file's, or a share of the first (the same share of every class). A target of many different numbers
(`could_be_either`) may be a class or a quantity: data.regression=true or data.classes=true says which.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedddp.core.check import check, shown
from fedddp.core.data import Dataset, Examples
from fedddp.data._arrays import MANY, SHARE
from fedddp.data._files import own
from fedddp.data._settings import Table
from fedddp.data._table import complete, encode, labels, numbers, read_rows

FEW = 10  # different numbers in a target, up to which they are taken for classes


class Source(Table):
    file: str = ""  # the table's path, from the current folder or data.root
    test_file: str = ""  # path of a table of test rows, in place of data.test_fraction; empty: none
    target: str = ""  # name or number (from 0) of the column to predict; empty: the last
    client: str = ""  # name or number (from 0) of a column that says whose a row is; empty: none
    regression: bool = False  # whether the target is a number rather than a class
    classes: bool = False  # whether the target is a class even though it is one of many numbers
    header: bool = True  # whether the first row holds names
    delimiter: str = ","  # the one character between two cells

    def __post_init__(self) -> None:
        super().__post_init__()
        fine = len(self.delimiter) == 1 and self.delimiter not in '\r\n"'
        check("data.delimiter", self.delimiter, fine, "one character")
        check("data.classes", self.classes, not (self.classes and self.regression), "false with data.regression=true")

    def load(self) -> Dataset:
        check("data.file", self.file, bool(self.file), "the path of a table, from the current folder or data.root")
        names, rows = self._read(self.file)
        others = self._test_rows(names)
        columns = list(zip(*rows, *others, strict=True))
        target = self._column("data.target", self.target, names) if self.target else len(names) - 1
        client = self._column("data.client", self.client, names) if self.client else -1
        kept = [n for n in range(len(names)) if n not in (target, client)]
        check("data.client", self.client, bool(kept), f"another column: nothing is left of {self.file} to predict from")
        inputs, numeric = encode([columns[n] for n in kept], [names[n] for n in kept])
        targets, classes = self._targets(columns[target], names[target])
        clients, owners = labels(columns[client]) if self.client else (None, ())
        test = torch.arange(len(rows), len(targets)) if self.test_file else None
        examples, more = Examples(inputs, targets, clients), {"label_names": classes, "client_names": owners}
        return self.rows(examples, len(classes), numeric=numeric, test=test, **more)

    def _targets(self, cells: Sequence[str], name: str) -> tuple[Tensor, tuple[str, ...]]:
        """Class numbers and the classes' names, or numbers."""
        values, (targets, classes) = numbers(cells, name), labels(cells)
        if len(classes) == 1:
            raise ValueError(f"data.target={name}: is {shown(classes[0])} in every row; there is nothing to predict")
        if self.regression:
            check("data.target", name, values is not None, "a column of numbers for data.regression=true")
            assert values is not None
            return values, ()
        if values is not None and not self.classes and could_be_either(values, len(classes)):
            raise ValueError(
                f"data.target={name}: holds {len(classes)} different numbers in {len(cells)} rows; say "
                "data.regression=true, or, if they are classes, data.classes=true"
            )
        return targets, classes

    def _test_rows(self, names: list[str]) -> list[list[str]]:
        if not self.test_file:
            return []
        other, rows = self._read(self.test_file)
        check(
            "data.test_file", self.test_file, other == names, f"a table with the columns of {self.file}, in their order"
        )
        return rows

    def _read(self, file: str) -> tuple[list[str], list[list[str]]]:
        path = own(self.root, file)
        rows = read_rows(path, self.delimiter)
        names = rows.pop(0) if self.header else [str(number) for number in range(len(rows[0]))]
        if len(names) == 1:
            raise ValueError(
                f"data.delimiter={self.delimiter}: {path} has one column only; name what separates its cells"
            )
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"{path}: has two columns named {shown(twice)!r}; rename one, or say data.header=false")
        whole = complete(rows)
        if not whole:
            raise ValueError(f"{path}: none of its {len(rows)} rows is without a missing value")
        return names, whole

    def _column(self, key: str, wanted: str, names: list[str]) -> int:
        if wanted in names:
            return names.index(wanted)
        choices = f"one of {shown(', '.join(names))}, or a number"
        check(key, wanted, wanted.isdecimal() and len(wanted) < 10 and int(wanted) < len(names), choices)
        return int(wanted)


def could_be_either(values: Tensor, different: int) -> bool:
    """Whether a target of so many different numbers may be a quantity: of many, fractions, or hardly any twice."""
    if different > MANY and different > SHARE * len(values):
        return True
    fractions = bool((values != values.round()).any())
    return different > FEW and (fractions or different > len(values) / 2)
