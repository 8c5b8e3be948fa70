"""scikit-learn's handwritten digits: 1,797 images of 8 x 8, ten classes. Comes with the package."""

import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from fedddp.core.check import check
from fedddp.core.data import Dataset, Examples
from fedddp.core.rng import stream
from fedddp.data._settings import Subset, check_test_fraction


class Source(Subset):  # root is unused: the files come with scikit-learn
    test_fraction: float = 0.2  # share of the images kept for the test, in (0, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_test_fraction(self.test_fraction)

    def load(self) -> Dataset:
        table = torch.from_numpy(np.loadtxt(_file(), delimiter=",", dtype=np.uint8))  # 64 pixels of 0..16, the digit
        inputs, targets = table[:, :64].reshape(-1, 8, 8).contiguous(), table[:, 64].long()
        order = torch.randperm(len(targets), generator=stream("digits", "test"))
        held = round(self.test_fraction * len(targets))
        fine = 0 < held < len(targets)
        check(
            "data.test_fraction", self.test_fraction, fine, f"such that some of {len(targets)} images are left to each"
        )
        everything = Examples(inputs, targets)
        return self.dataset(everything.take(order[held:]), everything.take(order[:held]), classes=10, scale=1 / 16)


def _file() -> gzip.GzipFile:
    """The file itself: importing scikit-learn to read it would cost every rank a second and a half."""
    found = find_spec("sklearn")
    if found is None or found.origin is None:
        raise ValueError("data.name=digits: its file comes with scikit-learn, which is not installed here")
    return gzip.open(Path(found.origin).parent / "datasets" / "data" / "digits.csv.gz")
