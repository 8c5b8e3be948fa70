"""MNIST: 60,000 + 10,000 handwritten digits of 28 x 28 (idx files, plain or .gz)."""

from fedddp.core.data import Dataset
from fedddp.data._idx import read_pair
from fedddp.data._settings import Images


class Source(Images):
    def load(self) -> Dataset:
        train, test = (read_pair(self.root, ("mnist", "MNIST/raw"), part, "mnist", 10) for part in ("train", "t10k"))
        return self.dataset(train, test, classes=10)
