"""LEAF's FEMNIST (62 classes by writer) or Shakespeare (80 characters -> the next one, by role), from its JSON files.

The files are those of LEAF's preprocess.sh: leaf/NAME/train/*.json and leaf/NAME/test/*.json. Users are the natural
clients, numbered in the order of the training files. FEMNIST's pixels k/255 are kept as the bytes k. Shakespeare's
letters are numbered as LEAF numbers them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from fedddp.core.check import check
from fedddp.core.data import Dataset, Examples
from fedddp.core.sound import whole
from fedddp.data._files import reading
from fedddp.data._leaf import Numbers, folder, users
from fedddp.data._settings import Images, Subset
from fedddp.data._text import LETTERS, letters

WINDOW = 80  # characters of an input
REMEDY = "make them with preprocess.sh of github.com/TalwalkarLab/leaf and copy its data/train and data/test there"


class Source(Images):
    set: str = "femnist"  # which of LEAF's sets: femnist or shakespeare
    users: int = 0  # most users to read, in the order of the files; 0: all

    def __post_init__(self) -> None:
        super().__post_init__()
        check("data.set", self.set, self.set in PARSERS, " or ".join(PARSERS))
        check("data.users", self.users, self.users >= 0, "0 for all, or a number of users")

    def load(self) -> Dataset:
        place, numbers = folder(self.root, (f"leaf/{self.set}", self.set), REMEDY), Numbers()
        train = self._read(place / "train", numbers)
        test = self._read(place / "test", numbers)
        if self.set == "shakespeare":
            names = {"label_names": tuple(LETTERS), "client_names": tuple(numbers)}
            return Subset.dataset(self, train, test, len(LETTERS), tokens=True, **names)
        return self.dataset(train, test, classes=62, client_names=tuple(numbers))

    def _read(self, place: Path, numbers: Numbers) -> Examples:
        inputs, targets, clients = [], [], []
        for path, user, x, y in users(place):
            if not x or (self.users and user not in numbers and len(numbers) == self.users):
                continue
            with reading(path, f"LEAF's {self.set}"):
                seen, labels = PARSERS[self.set](x, y)
            inputs.append(seen)
            targets.append(labels)
            clients.append(np.full(len(labels), numbers[user]))
        if not inputs:
            raise ValueError(f"{place}: holds no examples")
        parts = (np.concatenate(part) for part in (inputs, targets, clients))
        return Examples(*map(torch.from_numpy, parts))


def images(x: list[Any], y: list[Any]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    pixels, labels = np.asarray(x, np.float64), whole(y, "labels")
    if pixels.shape[1:] != (784,) or not (pixels.min() >= 0 and pixels.max() <= 1):  # which NaN is not
        raise ValueError(f"images must be 784 numbers from 0 to 1, not {pixels.shape[1:]}")
    if labels.min() < 0 or labels.max() >= 62:
        raise ValueError(f"labels go from {labels.min()} to {labels.max()}, expected 0 to 61")
    return np.rint(pixels * 255).astype(np.uint8).reshape(-1, 28, 28), labels


def characters(x: list[Any], y: list[Any]) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if any(len(text) != WINDOW for text in x) or any(len(text) != 1 for text in y):
        raise ValueError(f"x must be texts of {WINDOW} characters and y single characters")
    return letters("".join(x)).reshape(-1, WINDOW), letters("".join(y)).astype(np.int64)


PARSERS: dict[str, Callable[[list[Any], list[Any]], tuple[NDArray[np.uint8], NDArray[np.int64]]]] = {
    "femnist": images,
    "shakespeare": characters,
}
