"""scikit-learn's small tables, which come with the package: breast_cancer, wine, iris (classes), diabetes (a number).

Columns are standardised with the training rows' mean and deviation; diabetes' target is left as it is (25 to 346).
"""

import torch

from fedddp.core.check import check
from fedddp.core.data import Dataset, Examples
from fedddp.data._settings import Table

TABLES = ("breast_cancer", "wine", "iris", "diabetes")


class Source(Table):
    table: str = "breast_cancer"  # which table: breast_cancer, wine, iris or diabetes

    def __post_init__(self) -> None:
        super().__post_init__()
        check("data.table", self.table, self.table in TABLES, " or ".join(TABLES))

    def load(self) -> Dataset:
        from sklearn import datasets

        raw = getattr(datasets, f"load_{self.table}")()
        names = tuple(map(str, raw.get("target_names", ())))
        targets = torch.from_numpy(raw.target)
        targets = targets.long() if names else targets.float()
        return self.rows(Examples(torch.from_numpy(raw.data).float(), targets), len(names), label_names=names)
