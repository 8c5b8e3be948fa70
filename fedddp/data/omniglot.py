"""Omniglot by drawer: handwritten characters of many alphabets; the 20 drawers are natural clients (zip or folders).

Reads every images_*.zip (or images_* folder) it finds: ALPHABET/CHARACTER/NNNN_DD.png, 105 x 105, ink black on white.
A class is a character of an alphabet, a client the drawer number DD (which need not be the same person in every
alphabet). A character that several files hold counts once. Ink becomes 255 and paper 0; pictures are reduced to
`size` by averaging.
"""

import io
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps

from fedddp.core.check import check
from fedddp.core.data import Dataset, Examples, root
from fedddp.core.rng import stream
from fedddp.data._files import downloads, missing, reading
from fedddp.data._settings import Images, check_test_fraction, others, share


class Source(Images):
    size: int = 28  # height and width of a picture in pixels, from 1 to 105 (as published)
    test_fraction: float = 0.2  # share of each character's drawings kept for the test, in (0, 1)
    test_seed: int = 0  # seed of that choice; apart from the run's seed

    def __post_init__(self) -> None:
        super().__post_init__()
        check("data.size", self.size, 1 <= self.size <= 105, "from 1 to 105")
        check_test_fraction(self.test_fraction)

    def load(self) -> Dataset:
        found = {key: data for place in _places(self.root) for key, data in _drawings(place)}
        keys = sorted(found)
        characters = sorted({key[:2] for key in keys})
        number = {character: label for label, character in enumerate(characters)}
        inputs = torch.from_numpy(np.stack([_pixels(key, found[key], self.size) for key in keys]))
        targets = torch.tensor([number[key[:2]] for key in keys])
        everything = Examples(inputs, targets, torch.tensor([key[2] - 1 for key in keys]))
        test = share(targets, self.test_fraction, stream(self.test_seed, "test"), "data.test_fraction")
        train = everything.take(others(test, len(keys)))
        names = tuple("/".join(character) for character in characters)
        return self.dataset(train, everything.take(test), len(characters), label_names=names)


Key = tuple[str, str, int]  # alphabet, character, drawer


def _places(setting: str) -> list[Path]:
    """The zip files and unpacked folders; a zip is not read where its folder lies beside it."""
    places = [root(setting) / "omniglot", root(setting)]
    for place in places:
        folders = sorted(path for path in place.glob("images_*") if path.is_dir())
        zips = [path for path in sorted(place.glob("images_*.zip")) if path.with_suffix("") not in folders]
        if folders or zips:
            return folders + zips
    raise missing("images_background.zip", places, downloads("omniglot"))


def _drawings(place: Path) -> Iterator[tuple[Key, bytes]]:
    """Every picture's key and PNG bytes."""
    with reading(place, "Omniglot"):
        if place.is_dir():
            for path in place.glob("*/*/*.png"):
                yield _key(path), path.read_bytes()
            return
        with zipfile.ZipFile(place) as archive:
            for name in archive.namelist():
                if name.endswith(".png"):
                    yield _key(Path(name)), archive.read(name)


def _key(path: Path) -> Key:
    drawer = int(path.stem.split("_")[1])
    if not 1 <= drawer <= 20:
        raise ValueError(f"{path.name}: drawers have the numbers 1 to 20")
    return path.parts[-3], path.parts[-2], drawer


def _pixels(key: Key, data: bytes, size: int) -> np.ndarray:
    with reading(Path(*map(str, key)), "a PNG"):
        picture = ImageOps.invert(Image.open(io.BytesIO(data)).convert("L"))
        if size != 105:
            picture = picture.resize((size, size), Image.Resampling.BOX)
        return np.asarray(picture)
