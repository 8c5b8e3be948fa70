"""Shakespeare by role."""

import json
import lzma
from pathlib import Path

import pytest
import torch

from fedddp.data import shakespeare
from fedddp.data._text import LETTERS, letters, windows


def roles(path: Path, **speeches: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps({"play": "p", "role": role, "speeches": said}) + "\n" for role, said in speeches.items()]
    raw = "".join(lines).encode()
    path.write_bytes(lzma.compress(raw) if path.suffix == ".xz" else raw)


def spoken(codes: torch.Tensor) -> str:
    return "".join(LETTERS[code] for code in codes)


@pytest.mark.parametrize("name", ["roles.jsonl", "roles.jsonl.xz"])
def test_windows_stay_within_a_role_and_its_part(tmp_path: Path, name: str) -> None:
    roles(tmp_path / "shakespeare" / name, first=["abcdefgh", "jklmnopqrs"], brief=["x"], second=["A" * 40])
    source = shakespeare.Source(root=str(tmp_path), length=4, step=2, test_fraction=0.5)
    data = source.load()
    text = "abcdefgh\njklmnopqrs"  # 19 characters: 10 (rounded to even) to train on
    train = data.train.clients == 0
    assert [spoken(row) for row in data.train.inputs[train]] == [text[n : n + 4] for n in (0, 2, 4)]
    assert spoken(data.train.targets[train]) == "eg\n"
    test = data.test.clients == 0
    assert [spoken(row) for row in data.test.inputs[test]] == [text[n : n + 4] for n in (10, 12, 14)]
    assert data.train.clients is not None
    assert data.train.clients.unique().tolist() == [0, 1]  # the role with one letter is left out
    assert set(spoken(data.train.inputs[data.train.clients == 1].flatten())) == {"A"}
    assert data.tokens
    assert (data.classes, data.train.inputs.dtype, data.train.targets.dtype) == (80, torch.uint8, torch.int64)


def test_a_role_with_too_few_examples_is_left_out(tmp_path: Path) -> None:
    roles(tmp_path / "roles.jsonl", long=["word " * 100], short=["word " * 10])
    source = shakespeare.Source(root=str(tmp_path), length=10, step=1, minimum=100)
    assert set(source.load().train.clients.tolist()) == {0}  # type: ignore[union-attr]
    source.minimum = 1000
    with pytest.raises(ValueError, match="no role has 1000 examples"):
        source.load()


def test_tinyshakespeare_by_role(tmp_path: Path) -> None:
    text = "First Citizen:\nBefore we proceed.\n\nAll:\nSpeak, speak.\n\nFirst Citizen:\nYou are resolved\nto die?\n"
    (tmp_path / "tiny.txt.xz").write_bytes(lzma.compress(text.encode()))
    assert shakespeare.roles(tmp_path / "tiny.txt.xz") == [
        ("First Citizen", "Before we proceed.\nYou are resolved\nto die?"),
        ("All", "Speak, speak."),
    ]


def test_all_letters_and_no_others() -> None:
    assert letters(LETTERS).tolist() == list(range(80))
    assert letters("é$\x7f😀").tolist() == [LETTERS.index(" ")] * 4
    assert [part.shape for part in windows("abc", 3, 1)] == [(0, 3), (0,)]
    assert [part.shape for part in windows("abcd", 3, 1)] == [(1, 3), (1,)]


def test_missing_and_damaged_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"roles\.jsonl\.xz.*not found in .*shakespeare"):
        shakespeare.Source(root=str(tmp_path)).load()
    path = tmp_path / "roles.jsonl.xz"
    roles(path, one=["text " * 500])
    for content in (path.read_bytes()[:-30], b"not xz", lzma.compress(b'{"role": 1}'), lzma.compress(b"\xff\xfe")):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="cannot be read as speeches by role"):
            shakespeare.Source(root=str(tmp_path)).load()


@pytest.mark.data
def test_the_real_roles(data_root: Path) -> None:
    assert len(shakespeare.roles(data_root / "shakespeare/roles.jsonl.xz")) == 1398
    data = shakespeare.Source(root=str(data_root)).load()
    assert data.train.clients is not None
    assert len(data.train.clients.unique()) == 1154
    assert data.train.inputs.shape == (378525, 80)
    assert spoken(data.train.inputs[0]).startswith("Nay, but this dotage of our general's\n")
    tiny = shakespeare.Source(root=str(data_root), file="tinyshakespeare_input.txt.xz").load()
    assert spoken(tiny.train.inputs[0]).startswith("Before we proceed any further, hear me speak.")
