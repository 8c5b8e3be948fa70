"""The idx format of MNIST: two zero bytes, the type, the number of dimensions, the dimensions, the values.

A plain file is memory-mapped, so the ranks of a node share its pages; a .gz file is unpacked straight into place.
"""

import gzip
import struct
from math import prod
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np
import torch
from torch import Tensor

from fedddp.core.data import Examples
from fedddp.data._files import downloads, find, reading

UNSIGNED_BYTE = 0x08


def read_pair(setting: str, folders: tuple[str, ...], part: str, source: str, classes: int) -> Examples:
    """The images and labels of one part ("train" or "t10k") of an MNIST-like set."""
    images = _read(setting, folders, f"{part}-images-idx3-ubyte", source)
    labels = _read(setting, folders, f"{part}-labels-idx1-ubyte", source)
    if len(images) != len(labels):
        raise ValueError(f"{source}: the {part} files hold {len(images)} images and {len(labels)} labels")
    if len(labels) and int(labels.max()) >= classes:
        raise ValueError(f"{source}: the {part} labels go up to {int(labels.max())}, expected 0 to {classes - 1}")
    return Examples(images, labels.long())


def _read(setting: str, folders: tuple[str, ...], name: str, source: str) -> Tensor:
    return read(find(setting, folders, (name, f"{name}.gz"), downloads(source)))


def read(path: Path) -> Tensor:
    """A uint8 tensor."""
    packed = path.suffix == ".gz"
    with reading(path, "an idx file"), path.open("rb") as raw:
        file = cast(BinaryIO, gzip.GzipFile(fileobj=raw)) if packed else raw
        shape = _shape(file)
        return _unpack(file, shape) if packed else _map(path, shape)


def _shape(file: BinaryIO) -> tuple[int, ...]:
    zero, kind, dimensions = struct.unpack(">HBB", file.read(4))
    if zero != 0 or kind != UNSIGNED_BYTE or dimensions == 0:
        raise ValueError("its first bytes are not those of an idx file of unsigned bytes")
    return struct.unpack(f">{dimensions}I", file.read(4 * dimensions))


def _map(path: Path, shape: tuple[int, ...]) -> Tensor:
    header = 4 + 4 * len(shape)
    if path.stat().st_size != header + prod(shape):
        raise ValueError(f"has {path.stat().st_size} bytes, its header says {header + prod(shape)}")
    # copy-on-write: torch asks for writable memory, and nobody writes
    return torch.from_numpy(np.memmap(path, np.uint8, "c", header, shape))


def _unpack(file: BinaryIO, shape: tuple[int, ...]) -> Tensor:
    values = torch.empty(prod(shape), dtype=torch.uint8)
    done, view = 0, memoryview(values.numpy().data)
    while done < len(view):
        count = file.readinto(view[done : done + (1 << 20)])  # type: ignore[attr-defined]
        if not count:
            raise ValueError(f"ends after {done} of {len(view)} values")
        done += count
    if file.read(1):  # reading past the last value also checks the checksum
        raise ValueError(f"has more than the {len(view)} values of its header")
    return values.view(shape)
