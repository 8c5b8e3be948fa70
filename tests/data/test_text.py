"""Texts from files: what becomes of rows, lengths, labels and clients; the cache; batches of about one length."""

import json

import pytest
import torch

from fedddp.clients.cohort import Cohort
from fedddp.config import loading as configuration
from fedddp.core.data import IGNORED
from fedddp.data import _tokens
from fedddp.data._text import LETTERS
from fedddp.data.text import Source
from fedddp.runs.build import make_oracle, make_task

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def rows(tmp_path):
    found = [{"text": "ab" * (1 + n % 9), "label": "xyz"[n % 3], "who": "pq"[n % 2]} for n in range(60)]
    (tmp_path / "texts.jsonl").write_text("\n".join(map(json.dumps, found)) + "\n")
    lines = ["text,label,who", *(f"{row['text']},{row['label']},{row['who']}" for row in found)]
    (tmp_path / "texts.csv").write_text("\n".join(lines))
    return tmp_path


def spelt(row: torch.Tensor) -> str:
    return "".join(LETTERS[n] for n in row[0, : int(row[1].sum())].tolist())


def test_csv_and_json_lines_are_the_same_data(rows):
    found = [Source(file=str(rows / f"texts.{kind}"), client="who").load() for kind in ("csv", "jsonl")]
    for part in ("train", "test"):
        ours, theirs = (getattr(data, part) for data in found)
        assert torch.equal(ours.inputs, theirs.inputs)
        assert torch.equal(ours.targets, theirs.targets)
        assert torch.equal(ours.clients, theirs.clients)
    data = found[0]
    assert (data.classes, data.label_names, data.named) == (3, ("x", "y", "z"), ("input_ids", "attention_mask"))
    assert data.train.inputs.shape == (48, 2, 18)
    assert spelt(data.train.inputs[0]) == "ab"
    assert torch.bincount(data.test.targets).tolist() == [4, 4, 4]  # a share of each class
    lengths = data.lengths(data.test.inputs)
    assert torch.equal(lengths, lengths.sort().values)


def test_language_splits_long_texts_and_loses_no_token(rows):
    data = Source(file=str(rows / "texts.jsonl"), label="", length=4).load()
    assert data.classes == len(LETTERS)
    assert data.train.inputs.shape[1:] == (2, 4)
    real = data.train.targets != IGNORED
    assert torch.equal(real.sum(1), data.train.inputs[:, 1].sum(1))
    told = int(real.sum() + (data.test.targets != IGNORED).sum())
    assert told == sum(2 * (1 + n % 9) - 1 for n in range(60))  # every token but each text's first


def test_a_second_load_takes_tokens_from_the_cache(rows, monkeypatch):
    source = Source(file=str(rows / "texts.jsonl"))
    first = source.load()
    monkeypatch.setattr(_tokens, "letters", lambda text: pytest.fail("tokenised again"))
    assert torch.equal(source.load().train.inputs, first.train.inputs)
    next((rows / "cache").rglob("*.safetensors")).write_bytes(b"damage")
    monkeypatch.undo()


def test_batches_hold_texts_of_about_one_length_and_every_text_once(rows):
    words = ["data=text", f"data.file={rows}/texts.jsonl", "data.client=who", "split=natural", "model=gpt",
             "model.width=8", "model.heads=2", "model.loss=auto", "data.label=''", "local.batch_size=3"]  # fmt: skip
    config = configuration.load(None, words)
    task = make_task(config, CPU)
    cohort = Cohort((0, 1), 0, task, make_oracle(config, task))
    seen, computed = 0, 0
    for batch in cohort.batches(1, 3):
        weights = torch.ones(batch.targets.shape[:2]) if batch.weights is None else batch.weights
        seen += int(weights.sum())
        computed += batch.inputs[:, :, 0].numel()
        assert batch.inputs.shape[-1] % 8 == 0 or batch.inputs.shape[-1] == task.data.train.inputs.shape[-1]
    assert seen == len(task.data.train)
    assert computed < 0.8 * task.data.train.inputs[:, 0].numel() * seen / len(task.data.train)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"text": "txt"}, "data.text=txt: must be a column of .*: text, label, who"),
        ({"file": "nowhere.jsonl"}, "not found"),
        ({"tokenizer": "nowhere"}, "no such folder, nor one of an installed package"),
        ({"length": 1}, "data.length=1: must be from 2"),
    ],
)
def test_mistakes_are_named(rows, settings, says):
    with pytest.raises(ValueError, match=says):
        Source(**({"file": str(rows / "texts.jsonl")} | settings)).load()


def test_an_empty_cell_is_named(rows):
    (rows / "bad.jsonl").write_text('{"text": "a", "label": "x"}\n{"text": "", "label": "y"}')
    with pytest.raises(ValueError, match="row 2 has nothing in the column text"):
        Source(file=str(rows / "bad.jsonl")).load()
