"""The table of clients x classes, in text and as a picture."""

import numpy as np
import pytest
import torch
from PIL import Image

from fedddp.cli import main
from fedddp.core.shards import Shards
from fedddp.records import split_picture


def shards() -> Shards:
    return Shards.of([torch.tensor([0, 1, 2]), torch.tensor([5]), torch.tensor([3, 4])])


def test_counts_of_classes_labels_and_anything_else():
    targets = torch.tensor([0, 0, 1, 1, 1, 2])
    assert shards().count(targets, 3).tolist() == [[2, 1, 0], [0, 0, 1], [0, 2, 0]]
    several = torch.tensor([[1, 0], [1, 1], [0, 0], [0, 1], [0, 1], [1, 0]])
    assert shards().count(several, 2).tolist() == [[2, 1], [1, 0], [0, 2]]
    assert shards().count(targets.double(), 0).tolist() == [[3], [1], [2]]
    assert shards().count(several, 80).tolist() == [[3], [1], [2]]  # tokens


def test_text_says_what_it_amounts_to():
    counts = np.array([[2, 1, 0], [0, 0, 12]])
    table = split_picture.text(counts, counts.sum(1), ("cat", "dog", "eel")).splitlines()
    assert table == [
        "client  examples  cat dog eel",
        "     0         3    2   1   ·",
        "     1        12    ·   ·  12",
        "2 clients, 15 examples; smallest / median / largest 3 / 8 / 12",
        "a client's examples are spread as over 1.4 of 3 classes",
    ]
    long = split_picture.text(np.ones((1000, 30), dtype=int), np.full(1000, 30))
    assert "960 more clients" in long
    assert max(map(len, long.splitlines())) < 80


def test_effective_classes():
    assert split_picture.effective_classes(np.array([[5, 0], [5, 5], [0, 0]])).tolist() == pytest.approx([1, 2, 1])


@pytest.mark.parametrize("shape", [(3, 4), (1, 1), (300, 10), (12, 100)])
def test_draws_any_table(tmp_path, shape):
    counts = np.random.default_rng(0).integers(0, 9, shape)
    figure = split_picture.draw(counts, counts.sum(1), "title")
    figure.savefig(tmp_path / "split.png")
    assert np.asarray(Image.open(tmp_path / "split.png").convert("L")).std() > 5  # not an empty page
    shown = figure.axes[1].collections[0].get_array()
    assert shown.shape == shape[::-1]


def test_command(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["split", "digits", "split.clients=3", "--out", str(tmp_path / "deep" / "split.png")])
    assert stopped.value.code == 0
    out = capsys.readouterr().out
    assert "3 clients, 1438 examples" in out
    assert (tmp_path / "deep" / "split.png").stat().st_size > 5000
