"""Tensors of your own in a .safetensors file: train_inputs, train_targets, test_inputs, test_targets (or x_train, ...).

Optional train_clients and test_clients say whose each example is. uint8 inputs are pixels, other integers tokens,
floats are left as they are unless data.pixels=standardised. The file is memory-mapped.
"""

from fedddp.core.check import check
from fedddp.core.data import Dataset
from fedddp.data._arrays import Arrays
from fedddp.data._files import own, reading


class Source(Arrays):
    file: str = ""  # path of the .safetensors file, from the current folder or data.root

    def load(self) -> Dataset:
        from safetensors.torch import load_file

        check(
            "data.file",
            self.file,
            bool(self.file),
            "the path of a .safetensors file, from the current folder or data.root",
        )
        path = own(self.root, self.file)
        with reading(path, "tensors"):
            tensors = load_file(path)
        return self.from_arrays(tensors, str(path))
