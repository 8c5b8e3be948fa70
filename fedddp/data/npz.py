"""Arrays of your own in a numpy .npz file: train_inputs, train_targets, test_inputs, test_targets (or x_train, ...).

Optional train_clients and test_clients say whose each example is. uint8 inputs are pixels, other integers tokens,
floats are left as they are unless data.pixels=standardised. Nothing pickled is read.
"""

from dataclasses import dataclass

import numpy as np
import torch

from fedddp.data import Dataset
from fedddp.data._arrays import Arrays
from fedddp.data._files import find, reading
from fedddp.local import check


@dataclass
class Source(Arrays):
    file: str = ""  # from data.root or absolute

    def load(self) -> Dataset:
        check("data.file", self.file, bool(self.file), "the path of an .npz file, from data.root or absolute")
        path = find(self.root, (), (self.file,), "data.file is a path, from data.root or absolute")
        with reading(path, "arrays"), np.load(path, allow_pickle=False) as held:
            arrays = {name: torch.from_numpy(held[name]) for name in held.files}
        return self.from_arrays(arrays, str(path))
