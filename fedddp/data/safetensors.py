"""Tensors of your own in a .safetensors file: train_inputs, train_targets, test_inputs, test_targets (or x_train, ...).

Optional train_clients and test_clients say whose each example is. uint8 inputs are pixels, other integers tokens,
floats are left as they are unless data.pixels=standardised. The file is memory-mapped.
"""

from dataclasses import dataclass

from fedddp.data import Dataset
from fedddp.data._arrays import Arrays
from fedddp.data._files import find, reading
from fedddp.local import check


@dataclass
class Source(Arrays):
    file: str = ""  # from data.root or absolute

    def load(self) -> Dataset:
        from safetensors.torch import load_file

        check("data.file", self.file, bool(self.file), "the path of a .safetensors file, from data.root or absolute")
        path = find(self.root, (), (self.file,), "data.file is a path, from data.root or absolute")
        with reading(path, "tensors"):
            tensors = load_file(path)
        return self.from_arrays(tensors, str(path))
