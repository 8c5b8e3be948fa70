"""Frozen weights as pages of the file that they came from, which all processes of a machine share."""

import json
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

KINDS = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def share(module: nn.Module, files: Sequence[Path]) -> int:
    """Let frozen parameters that are in the safetensors files lie there; how many bytes do.

    A parameter is known by its numbers: of a tensor whose name and its own end alike, and all of whose bits are equal.
    """
    found = {name: value for file in files for name, value in tensors(file)}
    shared = 0
    for name, own in module.named_parameters():
        if own.requires_grad:
            continue
        plain = name.replace(".base_layer.", ".")  # peft's word for the layer that an adapter is beside
        for key in (key for key in found if plain.endswith(key) or key.endswith(plain)):
            theirs = found[key]
            if theirs.shape == own.shape and theirs.dtype == own.dtype and torch.equal(theirs, own.data):
                own.data = theirs
                shared += theirs.numel() * theirs.itemsize
                break
    return shared


def tensors(file: Path) -> Iterator[tuple[str, Tensor]]:
    """Tensors of floats that lie in a mapping of the file: private, so that nobody could write to it."""
    with file.open("rb") as opened:
        (size,) = struct.unpack("<Q", opened.read(8))
        header = json.loads(opened.read(size))
    storage: Any = torch.UntypedStorage.from_file(str(file), False, file.stat().st_size)
    for name, about in header.items():
        kind = KINDS.get(about.get("dtype", ""))
        if kind is None:
            continue
        start, end = (8 + size + place for place in about["data_offsets"])
        if start % kind.itemsize:
            continue
        flat = torch.empty(0, dtype=kind).set_(storage, start // kind.itemsize, ((end - start) // kind.itemsize,), (1,))
        yield name, flat.view(about["shape"])
