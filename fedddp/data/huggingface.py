"""A Hugging Face data set: a folder of parquet files (needs pyarrow), or any folder or hub name (needs datasets).

Parquet files belong to the split that their name begins with (train-00000-of-00001.parquet), here or in the folder
`data`. An image column is decoded to uint8 pixels, channels first; a column of numbers or lists of numbers is taken
as it is; targets that are texts are numbered by the alphabet.
"""

import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedddp.core.check import check, first_line
from fedddp.core.data import Dataset, root
from fedddp.data._arrays import Arrays
from fedddp.data._files import reading
from fedddp.data._table import labels


class Source(Arrays):
    path: str = ""  # a folder, from the current folder or data.root, or a name on the hub
    inputs: str = "image"  # name of the column of inputs
    targets: str = "label"  # name of the column of targets
    clients: str = ""  # name of the column that says whose an example is; empty: none
    train: str = "train"  # name of the set's split to train on
    test: str = "test"  # name of the set's split to test on

    def load(self) -> Dataset:
        check("data.path", self.path, bool(self.path), "a folder or a name on the hub")
        here = Path(self.path).expanduser()
        place = here if here.is_dir() else root(self.root) / self.path
        found = {part: columns(self, place, split) for part, split in (("train", self.train), ("test", self.test))}
        arrays = {f"{part}_inputs": numbers(found[part][self.inputs]) for part in found}
        named, names = self._numbered(found, self.targets)
        arrays |= {f"{part}_targets": values for part, values in named.items()}
        owners: tuple[str, ...] = ()
        if self.clients:
            numbered, owners = self._numbered(found, self.clients)
            arrays |= {f"{part}_clients": values for part, values in numbered.items()}
        return self.from_arrays(arrays, self.path, names, owners)

    def _numbered(self, columns: dict[str, Any], name: str) -> tuple[dict[str, Tensor], tuple[str, ...]]:
        """A column of both parts as numbers; texts are numbered alike in both."""
        cells = {part: columns[part][name] for part in columns}
        texts = {isinstance(cell, str) for values in cells.values() for cell in values}
        if len(texts) > 1:
            raise ValueError(f"data.path={self.path}: the column {name} holds both texts and numbers")
        if texts == {False}:
            return {part: numbers(values) for part, values in cells.items()}, ()
        numbered, names = labels(cells["train"] + cells["test"])
        train, test = numbered.split([len(cells["train"]), len(cells["test"])])
        return {"train": train, "test": test}, names


def columns(source: Source, place: Path, split: str) -> dict[str, list[Any]]:
    """The columns that a source names, of a split, as plain lists."""
    files = sorted(file for folder in (place, place / "data") for file in folder.glob(f"{split}*.parquet"))
    if files:
        tables = [_parquet(file) for file in files]
    elif any(place.rglob("*.parquet")):
        raise ValueError(f"{place}: has parquet files, but none whose name begins with {split}")
    else:
        tables = [_by_package(source.path, place, split)]
    wanted = [name for name in (source.inputs, source.targets, source.clients) if name]
    for name in wanted:
        key = next(key for key in ("inputs", "targets", "clients") if getattr(source, key) == name)
        check(f"data.{key}", name, name in tables[0].column_names, f"one of {', '.join(tables[0].column_names)}")
    found = {name: [cell for table in tables for cell in table.column(name).to_pylist()] for name in wanted}
    for name, cells in found.items():
        check("data.path", source.path, bool(cells), f"a set whose split {split} has rows")
        if any(cell is None for cell in cells):
            raise ValueError(f"data.path={source.path}: the column {name} of the split {split} has empty cells")
    return found


def _parquet(file: Path) -> Any:
    try:
        from pyarrow import parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise ValueError(
            f"{file}: reading parquet files needs pyarrow; install it with `pip install pyarrow`"
        ) from error
    with reading(file, "a parquet file"):
        return parquet.read_table(file)


def _by_package(path: str, place: Path, split: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise ValueError(
            f"data.path={path}: {place} holds no parquet files; other folders and names on the hub need the package "
            "datasets; install it with `pip install datasets`"
        ) from error
    try:
        if (place / "dataset_dict.json").exists():
            found = datasets.load_from_disk(str(place))[split]
        else:
            found = datasets.load_dataset(str(place) if place.is_dir() else path, split=split)
        return found.with_format("arrow")[:]
    except Exception as error:  # the package's own, the hub's and the network's errors have no common type
        raise ValueError(f"data.path={path}: datasets cannot load the split {split}: {first_line(error)}") from error


def numbers(cells: list[Any]) -> Tensor:
    """A column's cells as one tensor: pictures, numbers, or (nested) lists of numbers of one shape."""
    if cells and isinstance(cells[0], dict) and "bytes" in cells[0]:
        return torch.from_numpy(np.stack([_pixels(cell["bytes"]) for cell in cells]))
    try:
        array = np.asarray(cells)
        array = array.astype(np.float32) if array.dtype == np.float64 else array
        return torch.from_numpy(array)
    except (TypeError, ValueError) as error:
        raise ValueError(f"a column cannot be read as numbers of one shape: {first_line(error)}") from error


def _pixels(data: bytes) -> np.ndarray:
    from PIL import Image

    picture = np.asarray(Image.open(io.BytesIO(data)))
    return picture if picture.ndim == 2 else picture.transpose(2, 0, 1)
