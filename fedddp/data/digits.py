"""scikit-learn's handwritten digits: 1,797 images of 8 x 8, ten classes. Comes with the package."""

from dataclasses import dataclass

import torch

from fedddp.data import Dataset, Examples
from fedddp.data._settings import Settings
from fedddp.rng import stream


@dataclass
class Source(Settings):  # root is unused: the files come with scikit-learn
    test_fraction: float = 0.2

    def load(self) -> Dataset:
        from sklearn.datasets import load_digits

        raw = load_digits()
        inputs = torch.from_numpy(raw.images).to(torch.uint8)  # [N, 8, 8], 0..16
        targets = torch.from_numpy(raw.target).long()
        order = torch.randperm(len(targets), generator=stream("digits", "test"))
        held = round(self.test_fraction * len(targets))
        everything = Examples(inputs, targets)
        return self.dataset(everything.take(order[held:]), everything.take(order[:held]), classes=10, scale=1 / 16)
