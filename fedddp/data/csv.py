"""A table of your own: numbers standardised, categories one 0/1 column each (data.file, data.target).

Rows with a missing value (empty, ?, NA, NaN, null) are left out. A column is a number if all its cells are. The test
rows are a second file's, or a share of the first (the same share of every class).
"""

import torch

from fedddp.core.check import check
from fedddp.core.data import Dataset, Examples
from fedddp.data._files import own
from fedddp.data._settings import Table
from fedddp.data._table import complete, encode, labels, numbers, read_rows


class Source(Table):
    file: str = ""  # the table, from the current folder or data.root
    test_file: str = ""  # a table of test rows, in place of data.test_fraction
    target: str = ""  # name or number (from 0) of the column to predict (default: the last)
    client: str = ""  # name or number of a column that says whose a row is
    regression: bool = False  # the target is a number, not a class
    header: bool = True  # the first row holds names
    delimiter: str = ","

    def __post_init__(self) -> None:
        super().__post_init__()
        check("data.delimiter", self.delimiter, len(self.delimiter) == 1, "one character")

    def load(self) -> Dataset:
        check("data.file", self.file, bool(self.file), "the path of a table, from the current folder or data.root")
        names, rows = self._read(self.file)
        others = self._read(self.test_file)[1] if self.test_file else []
        columns = list(zip(*rows, *others, strict=True))
        target = self._column("data.target", self.target, names) if self.target else len(names) - 1
        client = self._column("data.client", self.client, names) if self.client else -1
        inputs, numeric = encode([column for n, column in enumerate(columns) if n not in (target, client)])
        targets, classes = labels(columns[target])
        if self.regression:
            values = numbers(columns[target])
            check("data.target", names[target], values is not None, "a column of numbers for data.regression=true")
            assert values is not None
            targets, classes = values, ()
        clients = labels(columns[client])[0] if self.client else None
        test = torch.arange(len(rows), len(targets)) if self.test_file else None
        return self.rows(
            Examples(inputs, targets, clients), len(classes), numeric=numeric, test=test, label_names=classes
        )

    def _read(self, file: str) -> tuple[list[str], list[list[str]]]:
        path = own(self.root, file)
        rows = read_rows(path, self.delimiter)
        names = rows.pop(0) if self.header else [str(number) for number in range(len(rows[0]))]
        whole = complete(rows)
        if not whole:
            raise ValueError(f"{path}: none of its {len(rows)} rows is without a missing value")
        return names, whole

    def _column(self, key: str, wanted: str, names: list[str]) -> int:
        if wanted in names:
            return names.index(wanted)
        check(key, wanted, wanted.isdecimal() and int(wanted) < len(names), f"one of {', '.join(names)}, or a number")
        return int(wanted)
