"""Texts of your own with a label each, or alone for language: CSV, JSON lines or a datasets folder.

    data=text data.file=speeches.csv data.label=role data.tokenizer=my/model          which role speaks?
    data=text data.file=speeches.jsonl data.label='' data.tokenizer=characters         what comes next?

Texts are tokenised once and kept in a cache. A batch is as long as its longest text, and batches are made of texts of
about the same length. A model is handed input_ids and attention_mask by these names.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedddp.core.check import check, check_count
from fedddp.core.data import MASK, Dataset, Examples, root
from fedddp.core.rng import stream
from fedddp.data import huggingface
from fedddp.data._files import missing, own, reading
from fedddp.data._settings import Subset, check_test_fraction, others, share
from fedddp.data._table import labels, read_rows
from fedddp.data._tokens import NAMED, Tokeniser, following, padded


class Rows(NamedTuple):
    """Columns of a file of texts."""

    texts: list[str]
    labels: list[str]  # empty for language
    clients: list[str]  # empty where nothing says whose a text is


class Texts(Subset, extends=True):
    """What sources of texts share."""

    tokenizer: str = (
        "characters"  # folder with tokenizer.json, or package/folder of an installed package; or characters
    )
    length: int = 128  # most tokens of an example, at least 2; a classifier's text is cut, one for language is split
    test_fraction: float = 0.2  # share of the texts kept for the test, in (0, 1); where there are labels, of each
    test_seed: int = 0  # seed of that choice; apart from the run's seed

    def __post_init__(self) -> None:
        super().__post_init__()
        check_count("data.length", self.length, least=2, most=1_000_000)
        check_test_fraction(self.test_fraction)

    def made(self, rows: Rows, test: Rows | None = None, strange: list[str] | None = None) -> Dataset:
        """The data set of these texts; a share of them is for the test, where `test` does not say which."""
        every = rows if test is None else Rows(*(a + b for a, b in zip(rows, test, strict=True)))
        targets, classes = labels(every.labels) if every.labels else (torch.zeros(len(every.texts)).long(), ())
        clients = labels(every.clients)[0] if every.clients else None
        if test is None:
            groups = targets if every.labels or clients is None else clients
            tested = share(groups, self.test_fraction, stream(self.test_seed, "test"), "data.test_fraction")
        else:
            tested = torch.arange(len(rows.texts), len(every.texts))
        trained = others(tested, len(every.texts))
        tokeniser, labelled = Tokeniser(self.tokenizer), bool(every.labels)
        tokens = tokeniser.encode(every.texts, labelled)
        size = min(self.length, max(map(len, tokens), default=0) - (not labelled))
        if size < 1:
            raise ValueError("data: no text is long enough; there is nothing to predict")

        def part(index: Tensor) -> Examples:
            rows = [tokens[number] for number in index.tolist()]
            if labelled:
                return Examples(padded(rows, size), targets[index], None if clients is None else clients[index])
            inputs, follow, row = following(rows, size)
            return Examples(inputs, follow, None if clients is None else clients[index][row])

        tests, count = _by_length(part(tested)), len(classes) or tokeniser.size
        data = self.dataset(part(trained), tests, count, tokens=True, named=NAMED, label_names=classes)
        if not strange:
            return data
        found = padded(tokeniser.encode(strange, labelled), size)
        return replace(data, strange=_by_length(Examples(found, torch.zeros(len(found)).long())))


class Source(Texts):
    file: str = ""  # a .csv, .jsonl or datasets folder, from the current folder or data.root
    test_file: str = ""  # texts to test on, in place of data.test_fraction; empty: none, or a folder's own split `test`
    text: str = "text"  # name of the column of texts
    label: str = "label"  # name of the column of labels; empty: none, each token's target is the next
    client: str = ""  # name of the column that says whose a text is; empty: none

    def load(self) -> Dataset:
        check("data.file", self.file, bool(self.file), "a .csv or .jsonl file, or a datasets folder")
        place = self._folder()
        if place is None:
            return self.made(self._rows(self.file), self._rows(self.test_file) if self.test_file else None)
        return self.made(self._split(place, "train"), self._split(place, "test"))

    def _folder(self) -> Path | None:
        here = Path(self.file).expanduser()
        return next((place for place in (here, root(self.root) / self.file) if place.is_dir()), None)

    def _wanted(self) -> list[str]:
        return [name for name in (self.text, self.label, self.client) if name]

    def _split(self, place: Path, split: str) -> Rows:
        source = huggingface.Source(path=self.file, inputs=self.text, targets=self.label, clients=self.client)
        return self._of(huggingface.columns(source, place, split), f"{place} ({split})")

    def _rows(self, file: str) -> Rows:
        path = own(self.root, file)
        if path.suffix == ".csv":
            names, *cells = read_rows(path)
            columns = dict(zip(names, map(list, zip(*cells, strict=True)), strict=True)) if cells else {}
        elif path.suffix in (".jsonl", ".json"):
            with reading(path, "JSON lines"):
                rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
                columns = {name: [row.get(name) for row in rows] for name in (rows[0] if rows else ())}
        else:
            raise missing(file, [path.parent], "a file of texts ends in .csv, .jsonl or .json")
        return self._of(columns, str(path))

    def _of(self, columns: dict[str, list[object]], where: str) -> Rows:
        for name in self._wanted():
            key = next(key for key in ("text", "label", "client") if getattr(self, key) == name)
            check(f"data.{key}", name, name in columns, f"a column of {where}: {', '.join(columns) or 'it is empty'}")
            empty = next((number for number, cell in enumerate(columns[name], 1) if cell in (None, "")), None)
            if empty is not None:
                raise ValueError(f"{where}: row {empty} has nothing in the column {name}; leave such rows out")
        found = {name: [str(cell) for cell in columns[name]] for name in self._wanted()}
        return Rows(found[self.text], found.get(self.label, []), found.get(self.client, []))


def _by_length(examples: Examples) -> Examples:
    """Short ones first, so that a chunk of an evaluation has little padding."""
    return examples.take(examples.inputs[:, NAMED.index(MASK)].sum(1).argsort(stable=True))
