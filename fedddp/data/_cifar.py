"""The two shapes in which CIFAR is published: rows of labels and pixels ("binary version"), and pickled arrays.

Pixels are three planes of 32 x 32. A single binary file is memory-mapped; several are joined in memory as uint8.
"""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedddp.core.data import Examples
from fedddp.data._files import reading

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
# what numpy writes into a pickled array: how to make one, its class and the class of its element type
ARRAY_PARTS = {
    (f"numpy.{core}.multiarray", "_reconstruct"): ("numpy._core.multiarray", "_reconstruct")
    for core in ("core", "_core")
} | {("numpy", name): ("numpy", name) for name in ("ndarray", "dtype")}


def read_binary(paths: Sequence[Path], labels: int, column: int, classes: int) -> Examples:
    """Rows of `labels` label bytes and the pixels; `column` is the label to take."""
    parts = [_rows(path, labels) for path in paths]
    for path, part in zip(paths, parts, strict=True):
        _check_labels(path, part[:, column], classes)
    targets = torch.cat([part[:, column] for part in parts]).long()
    pixels = [part[:, labels:] for part in parts]
    inputs = pixels[0] if len(pixels) == 1 else torch.cat(pixels)
    return Examples(inputs.unflatten(1, SHAPE), targets)


def _rows(path: Path, labels: int) -> Tensor:
    with reading(path, "a CIFAR binary file"):
        width = labels + PIXELS
        size = path.stat().st_size
        if size == 0 or size % width:
            raise ValueError(f"has {size} bytes, not a multiple of {width}")
        # copy-on-write: torch asks for writable memory, and nobody writes
        return torch.from_numpy(np.memmap(path, np.uint8, "c", shape=(size // width, width)))


def read_pickled(paths: Sequence[Path], key: str, classes: int) -> Examples:
    """Batches {"data": uint8 [N, 3072], key: list of N labels}."""
    parts = [_batch(path, key) for path in paths]
    for path, (_, labels) in zip(paths, parts, strict=True):
        _check_labels(path, labels, classes)
    inputs = torch.cat([pixels for pixels, _ in parts])
    return Examples(inputs.unflatten(1, SHAPE), torch.cat([labels for _, labels in parts]))


def _batch(path: Path, key: str) -> tuple[Tensor, Tensor]:
    with reading(path, "a CIFAR batch"), path.open("rb") as file:
        batch = ArraysOnly(file, encoding="bytes").load()
        pixels, labels = (batch.get(name.encode(), batch.get(name)) for name in ("data", key))
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.shape != (len(labels), PIXELS):
            raise ValueError(f"does not hold uint8 pixels [N, {PIXELS}] and N {key}")
        return torch.from_numpy(pixels), torch.tensor(labels, dtype=torch.int64)


class ArraysOnly(pickle.Unpickler):
    """Admits arrays, bytes, str, int, list and dict, and nothing that could run code."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):  # how bytes are written in pickles of protocol 2
            return _encode
        if (module, name) not in ARRAY_PARTS:
            raise pickle.UnpicklingError(f"refers to {module}.{name}; only arrays and plain values are read")
        return super().find_class(*ARRAY_PARTS[module, name])


def _encode(text: str, encoding: str) -> bytes:
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"bytes in the encoding {encoding}")
    return text.encode("latin-1")


def _check_labels(path: Path, labels: Tensor, classes: int) -> None:
    if not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise ValueError(f"{path}: holds the label {int(labels.max())}, expected 0 to {classes - 1}")
