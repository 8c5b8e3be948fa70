"""LEAF's JSON: FEMNIST and Shakespeare by user; StackOverflow's two tasks."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from fedddp.core.data import IGNORED
from fedddp.data import leaf, stackoverflow_tags, stackoverflow_words
from fedddp.data._text import LETTERS, next_words, vocabulary
from tests.data import writers


def image(*bytes_: int) -> list[float]:
    return [value / 255 for value in (*bytes_, *[255] * (784 - len(bytes_)))]


def femnist(root: Path) -> None:
    """Three writers over two training files; a fourth only to test."""
    first = {"f1": {"x": [image(0, 7), image(1)], "y": [3, 61]}, "f0": {"x": [image(2)], "y": [0]}}
    writers.leaf(root / "leaf/femnist/train/all_data_0.json", first)  # type: ignore[arg-type]
    writers.leaf(root / "leaf/femnist/train/all_data_1.json", {"f2": {"x": [image(3)], "y": [10]}})
    writers.leaf(root / "leaf/femnist/test/all_data_0.json", {"f2": {"x": [image(4)], "y": [1]}})
    writers.leaf(root / "leaf/femnist/test/all_data_1.json", {"f9": {"x": [image(5)], "y": [2]}})


def test_femnist_keeps_bytes_and_writers(tmp_path: Path) -> None:
    femnist(tmp_path)
    data = leaf.Source(root=str(tmp_path)).load()
    assert data.train.inputs.dtype == torch.uint8
    assert data.train.inputs.shape == (4, 28, 28)
    assert data.train.inputs[0, 0, :3].tolist() == [0, 7, 255]
    assert data.train.targets.tolist() == [3, 61, 0, 10]
    assert data.train.clients is not None
    assert data.train.clients.tolist() == [0, 0, 1, 2]
    assert data.test.clients is not None
    assert data.test.clients.tolist() == [2, 3]
    assert data.classes == 62


def test_only_so_many_users(tmp_path: Path) -> None:
    femnist(tmp_path)
    data = leaf.Source(root=str(tmp_path), users=3).load()
    assert data.test.targets.tolist() == [1]
    data = leaf.Source(root=str(tmp_path), users=2, set="femnist")
    with pytest.raises(ValueError, match="test: holds no examples"):
        data.load()


def test_shakespeare_letters_are_numbered_as_in_leaf(tmp_path: Path) -> None:
    text = ("To be, or not to be: that is the question " * 3)[:80]
    for part in ("train", "test"):
        users: dict[str, Any] = {"HAMLET": {"x": [text, "$" * 80], "y": ["a", "\n"]}}
        writers.leaf(tmp_path / f"leaf/shakespeare/{part}/data.json", users)
    data = leaf.Source(root=str(tmp_path), set="shakespeare").load()
    assert data.tokens
    assert data.classes == len(LETTERS) == 80
    assert "".join(LETTERS[code] for code in data.train.inputs[0]) == text
    assert set(data.train.inputs[1].tolist()) == {LETTERS.index(" ")}  # an unknown character
    assert data.train.targets.tolist() == [LETTERS.index("a"), 0]
    assert data.prepare(data.train.inputs, torch.float32).dtype == torch.int64


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ("", "Expecting value"),
        ('{"users": ["a"', "Expecting"),
        ('{"users": []}', "user_data"),
        ('{"user_data": {"a": {"x": [1], "y": []}}}', "user a has 1 x and 0 y"),
        ('{"user_data": {"a": {"x": [[0.5]], "y": [1]}}}', "784 numbers"),
        ('{"user_data": {"a": {"x": ["text"], "y": [1]}}}', "text"),
        ('{"user_data": {"a": {"x": [' + str([2.0] * 784) + '], "y": [1]}}}', "from 0 to 1"),
        ('{"user_data": {"a": {"x": [' + str([1.0] * 784) + '], "y": [62]}}}', "expected 0 to 61"),
        ('{"user_data": {"a": {"x": [' + str([1.0] * 784) + '], "y": [1.5]}}}', "labels must be integers"),
        ('{"user_data": {"a": {"x": [' + str([1.0] * 784) + '], "y": ["1"]}}}', "labels must be integers"),
        ('{"user_data": {"a": {"x": [' + str([1.0] * 784) + '], "y": [true]}}}', "labels must be integers"),
        ('{"user_data": {"a": {"x": [[NaN' + ", 0.5" * 783 + ']], "y": [1]}}}', "numbers from 0 to 1"),
    ],
)
def test_damaged_json_is_named(tmp_path: Path, content: str, reason: str) -> None:
    femnist(tmp_path)
    path = tmp_path / "leaf/femnist/train/all_data_1.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=re.escape(str(path)) + ".*" + re.escape(reason)):
        leaf.Source(root=str(tmp_path)).load()


def test_missing_json_is_named_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"train/\*\.json.*leaf/femnist.*preprocess\.sh"):
        leaf.Source(root=str(tmp_path)).load()
    with pytest.raises(ValueError, match=r"train/\*\.json.*stackoverflow.*TensorFlow Federated"):
        stackoverflow_tags.Source(root=str(tmp_path)).load()


def stackoverflow(root: Path) -> None:
    alice: dict[str, Any] = {
        "x": ["how to sort a list", ["sort", "a", "list", "fast"]],
        "y": ["python|list", ["python"]],
    }
    bob: dict[str, Any] = {"x": ["a a a", ""], "y": ["c++", ""]}
    writers.leaf(root / "stackoverflow/train/0.json", {"alice": alice, "bob": bob})
    writers.leaf(root / "stackoverflow/test/0.json", {"bob": {"x": ["a new list"], "y": ["python|rare"]}})


def test_tags_are_several_labels_of_a_bag_of_words(tmp_path: Path) -> None:
    stackoverflow(tmp_path)
    data = stackoverflow_tags.Source(root=str(tmp_path), words=3, tags=2).load()
    assert data.label_names == ("python", "c++")  # by frequency, then by the alphabet
    assert data.classes == 2
    assert data.train.targets.dtype == torch.uint8
    assert data.train.targets.tolist() == [[1, 0], [1, 0], [0, 1], [0, 0]]
    assert data.train.clients is not None
    assert data.train.clients.tolist() == [0, 0, 1, 1]
    assert data.input_shape == (3,)  # a, list, sort
    expected = [[1 / 5, 1 / 5, 1 / 5], [1 / 4, 1 / 4, 1 / 4], [1, 0, 0], [0, 0, 0]]
    assert torch.allclose(data.prepare(data.train.inputs, torch.float64), torch.tensor(expected).double())
    assert data.prepare(data.test.inputs, torch.float64).tolist()[0] == pytest.approx([1 / 3, 1 / 3, 0])
    assert data.test.targets.tolist() == [[1, 0]]
    assert data.test.clients is not None
    assert data.test.clients.tolist() == [1]


def test_next_words_end_in_ignored_targets(tmp_path: Path) -> None:
    stackoverflow(tmp_path)
    data = stackoverflow_words.Source(root=str(tmp_path), words=3, length=4, most=1).load()
    # 0 padding, 1 a, 2 how? no: by frequency a (4), then how, list by the alphabet among equals
    assert data.label_names == ("", "a", "how", "list", "<unknown>", "<begin>", "<end>")
    assert data.classes == 7
    unknown, begin, end = 4, 5, 6
    assert data.train.inputs.tolist() == [[begin, 2, unknown, unknown], [begin, 1, 1, 1]]
    assert data.train.targets.tolist() == [[2, unknown, unknown, 1], [1, 1, 1, end]]
    assert data.test.inputs.tolist() == [[begin, 1, unknown, 3]]
    assert data.tokens
    assert data.train.targets.dtype == torch.int64


def test_padding_is_zero_in_and_ignored_out() -> None:
    inputs, targets = next_words([["a"], []], {"a": 1}, 4)
    unknown, begin, end = 2, 3, 4
    assert unknown not in inputs
    assert inputs.tolist() == [[begin, 1, end, 0], [begin, end, 0, 0]]
    assert targets.tolist() == [[1, end, IGNORED, IGNORED], [end, IGNORED, IGNORED, IGNORED]]
    assert inputs.dtype == torch.int16


def test_a_large_vocabulary_takes_wider_numbers() -> None:
    words = {str(n): n for n in range(1, 40000)}
    inputs, _ = next_words([["39999"]], words, 3)
    assert inputs.dtype == torch.int32
    assert inputs[0, 1] == 39999


def test_a_vocabulary_is_the_most_frequent_words_of_equals_the_first() -> None:
    assert vocabulary([["b", "a", "c"], ["c"]], 2) == {"c": 1, "a": 2}


def test_bad_posts_are_named(tmp_path: Path) -> None:
    stackoverflow(tmp_path)
    (tmp_path / "stackoverflow/train/0.json").write_text('{"user_data": {"a": {"x": [5], "y": ["t"]}}}')
    with pytest.raises(ValueError, match=r"train/0\.json.*5 is neither a text nor a list"):
        stackoverflow_words.Source(root=str(tmp_path)).load()
    (tmp_path / "stackoverflow/train/0.json").write_text('{"user_data": {"a": {"x": [], "y": []}}}')
    with pytest.raises(ValueError, match="holds no posts"):
        stackoverflow_words.Source(root=str(tmp_path)).load()
