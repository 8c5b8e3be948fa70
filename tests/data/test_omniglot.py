"""Omniglot by drawer."""

import io
import zipfile
from pathlib import Path

import pytest
import torch
from PIL import Image

from fedddp.data import omniglot


def drawing(ink: int) -> bytes:
    """A white 1-bit picture of 105 x 105 with one black square of `ink` x `ink` in the corner."""
    picture = Image.new("1", (105, 105), 1)
    picture.paste(0, (0, 0, ink, ink))
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


def archive(path: Path, alphabets: dict[str, int], drawers: int = 5) -> None:
    """Each alphabet with so many characters."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w") as out:
        for alphabet, count in alphabets.items():
            for character in range(1, count + 1):
                for drawer in range(1, drawers + 1):
                    name = f"{path.stem}/{alphabet}/character{character:02d}/{character:04d}_{drawer:02d}.png"
                    out.writestr(name, drawing(15 * character))


def test_zips_and_folders_read_alike_and_copies_count_once(tmp_path: Path) -> None:
    archive(tmp_path / "omniglot/images_background_small1.zip", {"Greek": 2, "Latin": 3})
    archive(tmp_path / "omniglot/images_background_small2.zip", {"Greek": 2, "Korean": 1})
    source = omniglot.Source(root=str(tmp_path), size=7, test_fraction=0.2)
    packed = source.load()
    assert packed.classes == 6
    assert packed.label_names[0] == "Greek/character01"
    assert (len(packed.train), len(packed.test)) == (24, 6)
    assert packed.test.targets.tolist() == list(range(6))  # one drawing of each character
    assert packed.train.clients is not None
    assert set(packed.train.clients.tolist()) == set(range(5))
    assert packed.train.inputs[packed.train.targets == 0][0].tolist() == [[255] + [0] * 6] + [[0] * 7] * 6
    for path in list((tmp_path / "omniglot").glob("*.zip")):
        with zipfile.ZipFile(path) as held:
            held.extractall(path.parent)
        path.write_bytes(b"not read, since its folder is there")
    unpacked = source.load()
    assert torch.equal(packed.train.inputs, unpacked.train.inputs)
    assert torch.equal(packed.train.targets, unpacked.train.targets)


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"images_background\.zip: not found in .*omniglot.*fedddp data get omniglot"):
        omniglot.Source(root=str(tmp_path)).load()
    path = tmp_path / "images_background.zip"
    archive(path, {"Greek": 2})
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(ValueError, match=r"images_background\.zip: cannot be read"):
        omniglot.Source(root=str(tmp_path)).load()
    with zipfile.ZipFile(path, "w") as out:
        out.writestr("images/Greek/character01/0001_01.png", drawing(5)[:60])
    with pytest.raises(ValueError, match="Greek/character01/1: cannot be read as a PNG"):
        omniglot.Source(root=str(tmp_path)).load()


@pytest.mark.data
def test_the_real_small_sets(data_root: Path) -> None:
    data = omniglot.Source(root=str(data_root)).load()
    assert data.classes == 242  # 136 + 156 characters, of which Greek's 24 and Latin's 26 are in both
    assert (len(data.train), len(data.test)) == (16 * 242, 4 * 242)
    assert data.train.clients is not None
    assert data.train.clients.unique().tolist() == list(range(20))
    assert data.train.targets.bincount().unique().tolist() == [16]
