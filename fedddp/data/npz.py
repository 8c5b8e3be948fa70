"""Arrays of your own in a numpy .npz file: train_inputs, train_targets, test_inputs, test_targets (or x_train, ...).

Optional train_clients and test_clients say whose each example is. uint8 inputs are pixels, other integers tokens,
floats are left as they are unless data.pixels=standardised. Nothing pickled is read.
"""

import numpy as np
import torch

from fedddp.core.check import check
from fedddp.core.data import Dataset
from fedddp.data._arrays import Arrays
from fedddp.data._files import own, reading


class Source(Arrays):
    file: str = ""  # path of the .npz file, from the current folder or data.root

    def load(self) -> Dataset:
        check("data.file", self.file, bool(self.file), "the path of an .npz file, from the current folder or data.root")
        path = own(self.root, self.file)
        with reading(path, "arrays"), np.load(path, allow_pickle=False) as held:
            arrays = {name: torch.from_numpy(held[name]) for name in held.files}
        return self.from_arrays(arrays, str(path))
