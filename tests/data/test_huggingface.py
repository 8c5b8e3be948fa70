"""Hugging Face: local parquet files as the hub has them."""

import importlib.util
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from fedddp.data import huggingface
from tests.data import writers

pyarrow = pytest.importorskip("pyarrow")


def parquet(path: Path, **columns: list[Any]) -> None:
    from pyarrow import parquet

    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.table(columns), path)


def png(array: np.ndarray) -> dict[str, Any]:
    out = io.BytesIO()
    Image.fromarray(array).save(out, "PNG")
    return {"bytes": out.getvalue(), "path": None}


@pytest.mark.parametrize("shape", [(8, 8), (8, 8, 3)])
def test_images_over_several_files(tmp_path: Path, shape: tuple[int, ...]) -> None:
    pictures = writers.pixels(7, *shape)
    cells = [png(picture) for picture in pictures]
    parquet(tmp_path / "set/data/train-00000-of-00002.parquet", image=cells[:3], label=[0, 1, 2])
    parquet(tmp_path / "set/data/train-00001-of-00002.parquet", image=cells[3:5], label=[0, 1])
    parquet(tmp_path / "set/data/test-00000-of-00001.parquet", image=cells[5:], label=[1, 1])
    data = huggingface.Source(root=str(tmp_path), path="set").load()
    expected = pictures if pictures.ndim == 3 else pictures.transpose(0, 3, 1, 2)
    assert torch.equal(data.train.inputs, torch.from_numpy(expected[:5].copy()))
    assert data.train.targets.tolist() == [0, 1, 2, 0, 1]
    assert (data.classes, data.scale) == (3, 1 / 255)


def test_numbers_named_classes_and_clients(tmp_path: Path) -> None:
    source = huggingface.Source(path=str(tmp_path), inputs="x", targets="kind", clients="who", test="validation")
    parquet(tmp_path / "train.parquet", x=[[1.0, 2.0], [3.0, 4.0]], kind=["dog", "cat"], who=["b", "a"])
    parquet(tmp_path / "validation.parquet", x=[[5.0, 6.0]], kind=["eel"], who=["b"])
    data = source.load()
    assert data.label_names == ("cat", "dog", "eel")
    assert data.train.targets.tolist() == [1, 0]
    assert data.train.clients is not None
    assert data.train.clients.tolist() == [1, 0]
    assert data.train.inputs.tolist() == [[1, 2], [3, 4]]
    assert data.train.inputs.dtype == torch.float32


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"data\.path=: must be a folder"):
        huggingface.Source().load()
    path = tmp_path / "train.parquet"
    parquet(path, image=[1.0], label=[0])
    with pytest.raises(ValueError, match="none whose name begins with test"):
        huggingface.Source(path=str(tmp_path)).load()
    with pytest.raises(ValueError, match=r"data\.inputs=picture: must be one of image, label"):
        huggingface.Source(path=str(tmp_path), inputs="picture").load()
    parquet(tmp_path / "test.parquet", image=[1.0], label=[0])
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(ValueError, match=r"train\.parquet: cannot be read as a parquet file"):
        huggingface.Source(path=str(tmp_path)).load()
    parquet(path, image=[[1.0], [1.0, 2.0]], label=[0, 1])
    with pytest.raises(ValueError, match="cannot be read as numbers of one shape"):
        huggingface.Source(path=str(tmp_path)).load()


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"image": [[1.0], [float("nan")]], "label": [0, 1]}, "holds numbers that are not finite"),
        ({"image": [[1.0], None], "label": [0, 1]}, "the column image of the split train has empty cells"),
        ({"image": [[1.0], [2.0]], "label": [0, None]}, "the column label of the split train has empty cells"),
        ({"image": [[1.0], [2.0]], "label": ["a", "b"]}, "the column label holds both texts and numbers"),
        ({"image": [], "label": []}, "must be a set whose split train has rows"),
        ({"image": [[1.0], [2.0]], "label": [0, -1]}, "targets from -1"),
    ],
)
def test_cells_that_cannot_be_meant(tmp_path: Path, columns: dict[str, list[Any]], message: str) -> None:
    parquet(tmp_path / "train.parquet", **columns)
    parquet(tmp_path / "test.parquet", image=[[1.0], [2.0]], label=[0, 1])
    with pytest.raises(ValueError, match=message):
        huggingface.Source(path=str(tmp_path)).load()


def test_what_the_package_saved_or_can_read(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"x": [[1.0, 2.0], [3.0, 4.0]], "label": [0, 1]}
    both = datasets.DatasetDict(train=datasets.Dataset.from_dict(rows), test=datasets.Dataset.from_dict(rows))
    both.save_to_disk(str(tmp_path / "saved"))
    data = huggingface.Source(root=str(tmp_path), path="saved", inputs="x").load()
    assert data.train.inputs.tolist() == rows["x"]
    (tmp_path / "tables").mkdir()
    for name in ("train", "test"):
        (tmp_path / f"tables/{name}.csv").write_text("x,label\n1.5,b\n2.5,a\n")
    data = huggingface.Source(root=str(tmp_path), path="tables", inputs="x").load()
    assert data.train.inputs.tolist() == [[1.5], [2.5]]
    assert data.train.targets.tolist() == [1, 0]
    with pytest.raises(ValueError, match="cannot load the split other"):
        huggingface.Source(root=str(tmp_path), path="tables", inputs="x", test="other").load()


@pytest.mark.skipif(importlib.util.find_spec("datasets") is not None, reason="datasets is installed")
def test_a_name_on_the_hub_needs_the_package(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pip install datasets"):
        huggingface.Source(root=str(tmp_path), path="ylecun/mnist").load()
