"""What every source can be told, and how a stored number becomes a model input, for all of them alike."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from fedddp.core.check import check
from fedddp.core.data import Dataset, Examples, Source
from fedddp.core.rng import stream

AUGMENTS = ("none", "crops")
PIXELS = ("0-255", "0-1", "standardised", "mnist")
MNIST = (0.1307, 0.3081)  # mean and deviation of MNIST's pixels from 0 to 1, which some scale other pictures with


class Subset(Source, extends=True):
    """A source of which a share may be used and a part held out."""

    root: str = ""  # folder of the data files; empty: FEDDDP_DATA, then ./data
    fraction: float = 1.0  # share of the training set to use, in (0, 1]; where there are classes, of each
    fraction_seed: int = 0  # seed of that choice and of the validation part; apart from the run's seed
    validation: int = 0  # training points held out at the server, taken at random from the fraction; 0: none
    keep_validation: bool = False  # whether clients hold those points too; they are then drawn with replacement
    contaminated: float = 0.0  # share of the clients' labels replaced by others at random before the split, in [0, 1)

    def __post_init__(self) -> None:
        check("data.fraction", self.fraction, 0 < self.fraction <= 1, "in (0, 1]")
        check("data.validation", self.validation, self.validation >= 0, "0 for none, or a number of training points")
        check("data.contaminated", self.contaminated, 0 <= self.contaminated < 1, "in [0, 1)")

    def dataset(self, train: Examples, test: Examples, classes: int, **more: Any) -> Dataset:
        """The loaded parts as this source's Dataset: a fraction of the training set, part of it held out."""
        if len(train) == 0:
            raise ValueError("data: nothing is left to train on; choose a smaller data.test_fraction, or more data")
        if self.fraction < 1:
            some = share(train.targets, self.fraction, stream(self.fraction_seed, "fraction"), "data.fraction")
            train = train.take(some)
        held = None
        check("data.validation", self.validation, self.validation < len(train), f"below {len(train)} training points")
        if self.validation and self.keep_validation:
            drawn = torch.randint(len(train), (self.validation,), generator=stream(self.fraction_seed, "validation"))
            held = train.take(drawn)
        elif self.validation:
            order = torch.randperm(len(train), generator=stream(self.fraction_seed, "validation"))
            held = train.take(order[: self.validation].sort().values)
            train = train.take(order[self.validation :].sort().values)
        if self.contaminated:
            train = contaminate(train, classes, self.contaminated, stream(self.fraction_seed, "contaminated"))
        return Dataset(train, test, classes, validation=held, **more)


class Images(Subset, extends=True):
    pixels: str = "0-1"  # values of pixels: 0-1, 0-255 as stored, standardised (channel by channel), or mnist's own
    augment: str = "none"  # what happens to training pictures in every step: none, or crops (random crops and flips)

    def __post_init__(self) -> None:
        super().__post_init__()
        check("data.pixels", self.pixels, self.pixels in PIXELS, " or ".join(PIXELS))
        check("data.augment", self.augment, self.augment in AUGMENTS, " or ".join(AUGMENTS))

    def dataset(self, train: Examples, test: Examples, classes: int, **more: Any) -> Dataset:
        data = super().dataset(train, test, classes, **more)
        if self.augment == "crops":
            if data.train.inputs.dim() < 3:
                raise ValueError(
                    "data.augment=crops: needs pictures, and these inputs are rows of numbers; choose none"
                )
            data = replace(data, augment=True)
        if self.pixels == "0-255":
            return data
        if self.pixels == "0-1":
            return replace(data, scale=1 / 255)
        if self.pixels == "mnist":
            return centred(data, *(255 * torch.tensor(number, dtype=torch.float64) for number in MNIST))
        mean, deviation = pixel_moments(data.train.inputs)
        return centred(data, mean, deviation)


class Table(Subset, extends=True):
    test_fraction: float = 0.2  # share of the rows kept for the test, in (0, 1); where there are classes, of each class
    test_seed: int = 0  # seed of that choice; apart from the run's seed
    standardise: bool = True  # whether numbers (not categories) are taken by their training mean and deviation

    def __post_init__(self) -> None:
        super().__post_init__()
        check_test_fraction(self.test_fraction)

    def rows(
        self, rows: Examples, classes: int, numeric: Tensor | None = None, test: Tensor | None = None, **more: Any
    ) -> Dataset:
        """All rows of one table, the rows `test` (or a share) to test on; `numeric` [F] marks what to standardise."""
        if test is None:
            test = share(rows.targets, self.test_fraction, stream(self.test_seed, "test"), "data.test_fraction")
        data = self.dataset(rows.take(others(test, len(rows))), rows.take(test), classes, **more)
        if not self.standardise:
            return data
        return centred(data, *column_moments(data.train.inputs, numeric))


def contaminate(examples: Examples, classes: int, fraction: float, generator: torch.Generator) -> Examples:
    """With a share of the labels replaced, each by any other class with equal chances."""
    targets = examples.targets
    fine = classes > 1 and targets.dim() == 1 and not targets.is_floating_point()
    check("data.contaminated", fraction, fine, "0: there is no single label of an example to replace")
    rows = torch.randperm(len(targets), generator=generator)[: round(fraction * len(targets))]
    shift = torch.randint(1, classes, (len(rows),), generator=generator)
    wrong = targets.clone()
    wrong[rows] = (targets[rows] + shift.to(targets)) % classes
    return replace(examples, targets=wrong)


def check_test_fraction(fraction: float) -> None:
    check("data.test_fraction", fraction, 0 < fraction < 1, "in (0, 1)")


def share(targets: Tensor, fraction: float, generator: torch.Generator, key: str = "data.fraction") -> Tensor:
    """Sorted indices of a random share of the examples: of each class its rounded share, where there are classes."""
    everything = torch.arange(len(targets))
    stratified = targets.dim() == 1 and not targets.is_floating_point()
    groups = [(targets == label).nonzero().flatten() for label in targets.unique()] if stratified else [everything]
    picked = [
        group[torch.randperm(len(group), generator=generator)[: round(fraction * len(group))]] for group in groups
    ]
    index = torch.cat(picked).sort().values
    if len(index) == 0:
        raise ValueError(f"{key}={fraction}: {fraction} leaves none of {len(targets)} examples; choose a larger share")
    return index


def others(index: Tensor, count: int) -> Tensor:
    """The numbers below `count` that are not in `index`, in order."""
    rest = torch.ones(count, dtype=torch.bool)
    rest[index] = False
    return rest.nonzero().flatten()


def centred(data: Dataset, mean: Tensor, deviation: Tensor) -> Dataset:
    """Inputs become (x - mean) / deviation; what never varies is only centred."""
    deviation = torch.where(deviation > 0, deviation, 1.0)
    return replace(data, scale=1 / deviation, shift=-mean / deviation)


def pixel_moments(pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of uint8 images [N, H, W], or of each channel [N, C, H, W]; exact, and no float copy."""
    planes = pixels.unsqueeze(1) if pixels.dim() == 3 else pixels
    counts = torch.zeros(planes.shape[1], 256, dtype=torch.int64)
    for chunk in planes.split(1000):
        for channel, plane in enumerate(chunk.unbind(1)):
            counts[channel] += torch.bincount(plane.reshape(-1), minlength=256)
    weights = counts / counts.sum(1, keepdim=True).double()
    value = torch.arange(256, dtype=torch.float64)
    mean = weights @ value
    deviation = (weights * (value - mean.unsqueeze(1)).square()).sum(1).sqrt()
    return (mean[0], deviation[0]) if pixels.dim() == 3 else (mean.view(-1, 1, 1), deviation.view(-1, 1, 1))


def column_moments(columns: Tensor, numeric: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean and deviation of each column [N, F]; 0 and 1 for columns that are not numbers."""
    mean, deviation = columns.double().mean(0), columns.double().std(0, correction=0)
    if numeric is None:
        return mean, deviation
    return torch.where(numeric, mean, 0.0), torch.where(numeric, deviation, 1.0)
