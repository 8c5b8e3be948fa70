"""UCI Credit Approval: 653 complete applications, 46 columns, granted or not (crx.data).

Rows with a missing value (37 of 690) are left out. The nine categories become one 0/1 column per value (40), the six
numbers are standardised with the training rows' mean and deviation. Class 1 is "+". The test rows are drawn class by
class; 133 of them leave the 520 training rows (45 % positive) of "Connecting Federated ADMM to Bayes".
"""

import torch

from fedddp.core.data import Dataset, Examples
from fedddp.data._files import downloads, find, reading
from fedddp.data._settings import Table
from fedddp.data._table import complete, encode, read_rows


class Source(Table):
    test_fraction: float = 133 / 653

    def load(self) -> Dataset:
        path = find(self.root, ("credit", "credit-screening"), ("crx.data",), downloads("credit"))
        columns = list(zip(*complete(read_rows(path)), strict=True))
        with reading(path, "Credit Approval"):
            if len(columns) != 16 or set(columns[-1]) != {"+", "-"}:
                raise ValueError("expected 15 columns and a last one of + and -")
        inputs, numeric = encode(columns[:-1])
        targets = torch.tensor([int(cell == "+") for cell in columns[-1]])
        return self.rows(Examples(inputs, targets), 2, numeric=numeric, label_names=("-", "+"))
