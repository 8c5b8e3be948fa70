"""Small files in the publishers' own formats."""

import gzip
import io
import json
import pickle
import struct
from pathlib import Path
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]


def pixels(*shape: int, seed: int = 0) -> Bytes:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def idx(path: Path, values: Bytes) -> Path:
    """Packed if the name ends in .gz."""
    content = struct.pack(">HBB", 0, 8, values.ndim) + struct.pack(f">{values.ndim}I", *values.shape) + values.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)
    return path


def mnist(folder: Path, train: int = 50, test: int = 20, suffix: str = "") -> None:
    """`train` + `test` images, labels 0 to 9 in turn."""
    for seed, (part, count) in enumerate((("train", train), ("t10k", test))):
        idx(folder / f"{part}-images-idx3-ubyte{suffix}", pixels(count, 28, 28, seed=seed))
        idx(folder / f"{part}-labels-idx1-ubyte{suffix}", np.arange(count, dtype=np.uint8) % 10)


def cifar_rows(path: Path, labels: Bytes, seed: int = 0) -> Bytes:
    """The binary version: labels [N, 1 or 2] before 3,072 pixels; returns the pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    colours = pixels(len(labels), 3072, seed=seed)
    path.write_bytes(np.concatenate([labels, colours], 1).tobytes())
    return colours


def cifar_pickle(path: Path, seed: int = 0, **labels: list[int]) -> Bytes:
    """The Python version, byte for byte in the manner of Python 2 and an old numpy."""
    path.parent.mkdir(parents=True, exist_ok=True)
    count = len(next(iter(labels.values())))
    colours = pixels(count, 3072, seed=seed)
    out = io.BytesIO()
    Python2(out, 2).dump({"data": colours, "batch_label": "training batch 1 of 5", **labels})
    path.write_bytes(out.getvalue().replace(b"numpy._core.multiarray", b"numpy.core.multiarray"))
    return colours


class Python2(pickle._Pickler):  # type: ignore[name-defined, misc]
    """Writes text and bytes as Python 2 wrote both: as plain strings."""

    dispatch: ClassVar = dict(pickle._Pickler.dispatch)  # type: ignore[attr-defined]

    def save_string(self, value: str | bytes) -> None:
        raw = value.encode("latin-1") if isinstance(value, str) else value
        self.write(b"T" + struct.pack("<i", len(raw)) + raw)
        self.memoize(value)

    dispatch[str] = dispatch[bytes] = save_string


def leaf(path: Path, user_data: dict[str, dict[str, list[object]]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    counts = [len(data["y"]) for data in user_data.values()]
    path.write_text(json.dumps({"users": list(user_data), "num_samples": counts, "user_data": user_data}))
