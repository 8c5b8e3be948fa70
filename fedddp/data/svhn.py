"""SVHN: 73,257 + 26,032 house-number digits of 3 x 32 x 32 (train_32x32.mat, test_32x32.mat)."""

from pathlib import Path

import numpy as np
import torch

from fedddp.core.data import Dataset, Examples
from fedddp.data._files import downloads, find, reading
from fedddp.data._settings import Images


class Source(Images):
    def load(self) -> Dataset:
        names = ("train_32x32.mat", "test_32x32.mat")
        train, test = (read(find(self.root, ("svhn", "SVHN"), (name,), downloads("svhn"))) for name in names)
        return self.dataset(train, test, classes=10)


def read(path: Path) -> Examples:
    """X uint8 [32, 32, 3, N] and y [N, 1], where the digit 0 is written 10."""
    from scipy.io import loadmat

    with reading(path, "an SVHN .mat file"):
        found = loadmat(path, variable_names=["X", "y"])
        pixels, labels = found["X"], found["y"].reshape(-1).astype(np.int64)
        if pixels.dtype != np.uint8 or pixels.shape != (32, 32, 3, len(labels)):
            raise ValueError(f"X is {pixels.dtype} {pixels.shape} for {len(labels)} labels")
        if len(labels) and not 1 <= labels.min() <= labels.max() <= 10:
            raise ValueError(f"y goes from {labels.min()} to {labels.max()}, expected 1 to 10")
        inputs = np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))
        return Examples(torch.from_numpy(inputs), torch.from_numpy(labels % 10))
