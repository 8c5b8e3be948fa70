"""UCI Heart Disease at four hospitals, which are the natural clients: 740 patients, 13 columns (processed.*.data).

Features and rows are those of FLamby (du Terrail et al., 2022): the columns slope, ca and thal are left out, then all
rows with a missing value, which leaves 303, 261, 46 and 130 patients; chest pain and resting ECG become 0/1 columns
without their first value; any disease is class 1. Each hospital's rows are divided 66 % / 34 % with FLamby's seed,
class by class where both classes have more than two rows: 199, 172, 30 and 85 to train on. As there, columns are
standardised with the training statistics of their own hospital (a column that never varies in a hospital is only
centred); `standardise=pooled` uses those of all hospitals, `none` leaves the columns as they are.
"""

from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from fedddp.core.check import check
from fedddp.core.data import Dataset, Examples
from fedddp.data._files import downloads, find, reading
from fedddp.data._settings import Subset, centred, column_moments, others
from fedddp.data._table import complete, one_hot, read_rows

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
LEFT_OUT = (10, 11, 12)  # slope, ca, thal: missing almost everywhere but in Cleveland
CATEGORIES = (2, 6)  # chest pain, resting ECG
STANDARDISE = ("hospital", "pooled", "none")
TRAIN, FLAMBY_SEED = 0.66, 43


class Source(Subset):
    standardise: str = "hospital"  # mean and deviation of each hospital, or pooled: of all of them, or none

    def __post_init__(self) -> None:
        super().__post_init__()
        check("data.standardise", self.standardise, self.standardise in STANDARDISE, " or ".join(STANDARDISE))

    def load(self) -> Dataset:
        files = [f"processed.{name}.data" for name in HOSPITALS]
        tables = [_read(find(self.root, ("heart", "heart-disease"), (name,), downloads("heart"))) for name in files]
        rows = torch.cat(tables)
        clients = torch.arange(len(tables)).repeat_interleave(torch.tensor([len(table) for table in tables]))
        examples = Examples(_features(rows), (rows[:, -1] > 0).long(), clients)
        test = torch.cat([_held_out(examples, hospital) for hospital in range(len(tables))])
        train = examples.take(others(test, len(rows)))
        data = self.dataset(train, examples.take(test), 2, label_names=("healthy", "disease"), client_names=HOSPITALS)
        if self.standardise == "pooled":
            return centred(data, *column_moments(data.train.inputs))
        return _by_hospital(data) if self.standardise == "hospital" else data


def _read(path: Path) -> Tensor:
    """The complete rows [N, 11] of a hospital."""
    rows = read_rows(path)
    with reading(path, "a hospital's rows"):
        if len(rows[0]) != 14:
            raise ValueError(f"expected 14 columns, found {len(rows[0])}")
        kept = complete([[cell for n, cell in enumerate(row) if n not in LEFT_OUT] for row in rows])
        return torch.tensor([[float(cell) for cell in row] for row in kept])


def _features(rows: Tensor) -> Tensor:
    numbers = [rows[:, n : n + 1] for n in range(rows.shape[1] - 1) if n not in CATEGORIES]
    flags = [one_hot([str(value) for value in rows[:, n].tolist()])[:, 1:] for n in CATEGORIES]
    return torch.cat(numbers + flags, 1)


def _held_out(examples: Examples, hospital: int) -> Tensor:
    """The test rows of one hospital."""
    from sklearn.model_selection import train_test_split

    assert examples.clients is not None
    rows = (examples.clients == hospital).nonzero().flatten()
    labels = examples.targets[rows]
    counts = labels.bincount(minlength=2)
    by_class = labels.numpy() if bool((counts > 2).all()) else None
    _, test = train_test_split(
        rows.numpy(), test_size=1 - TRAIN, train_size=TRAIN, random_state=FLAMBY_SEED, stratify=by_class
    )
    return torch.from_numpy(test).sort().values


def _by_hospital(data: Dataset) -> Dataset:
    """Every row by the training statistics of its own hospital, which no common scale can express."""
    moments = [column_moments(_of(data.train, hospital)) for hospital in range(len(HOSPITALS))]
    mean, deviation = (torch.stack(part) for part in zip(*moments, strict=True))
    deviation = torch.where(deviation > 0, deviation, 1.0)

    def standardise(part: Examples) -> Examples:
        inputs = (part.inputs - mean[part.clients]) / deviation[part.clients]
        return replace(part, inputs=inputs.float())

    held = None if data.validation is None else standardise(data.validation)
    return replace(data, train=standardise(data.train), test=standardise(data.test), validation=held)


def _of(examples: Examples, client: int) -> Tensor:
    return examples.inputs[examples.clients == client]
