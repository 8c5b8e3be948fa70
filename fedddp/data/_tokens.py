"""Texts as tokens: a tokeniser's, or characters; made once and kept in a cache, padded to one length.

A tokeniser is a folder with tokenizer.json, as Hugging Face's are (needs the package tokenizers), or `characters`:
LEAF's 80 letters. The cache is keyed by the tokeniser and the texts themselves: XDG_CACHE_HOME/fedddp/tokens.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from fedddp.core.check import first_line
from fedddp.core.data import IGNORED, MASK
from fedddp.core.files import folder, whole
from fedddp.data._text import LETTERS, letters

CHARACTERS = "characters"
NAMED = ("input_ids", MASK)


@dataclass(frozen=True)
class Tokeniser:
    name: str  # characters, or a folder

    @cached_property
    def file(self) -> Path:
        path = folder("data.tokenizer", self.name) / "tokenizer.json"
        if not path.is_file():
            raise ValueError(f"data.tokenizer={self.name}: {path} is missing; name a folder with tokenizer.json")
        return path

    @cached_property
    def _made(self) -> Any:
        try:
            from tokenizers import Tokenizer
        except ImportError as error:
            raise ValueError(
                f"data.tokenizer={self.name}: needs tokenizers; install it with `pip install fedddp[transformers]`"
            ) from error
        try:
            made = Tokenizer.from_file(str(self.file))
        except Exception as error:  # the library raises nothing more precise
            raise ValueError(f"{self.file}: is no tokeniser: {first_line(error)}") from error
        made.no_truncation()
        made.no_padding()
        return made

    @property
    def size(self) -> int:
        """Different tokens."""
        return len(LETTERS) if self.name == CHARACTERS else self._made.get_vocab_size()

    def encode(self, texts: Sequence[str], whole_sentences: bool) -> list[Tensor]:
        """The tokens of each text; with the marks around a whole sentence, which classifiers know, or without."""
        kept = _cache() / f"{self._key(texts, whole_sentences)}.safetensors"
        with suppress(FileNotFoundError, SafetensorError):
            found = load_file(kept)
            return list(found["tokens"].split(found["lengths"].tolist()))
        made = [torch.tensor(row, dtype=torch.int32) for row in self._rows(texts, whole_sentences)]
        lengths = torch.tensor([len(row) for row in made])
        kept.parent.mkdir(parents=True, exist_ok=True)
        with whole(kept) as temporary:
            save_file({"tokens": torch.cat(made), "lengths": lengths}, temporary)
        return made

    def _rows(self, texts: Sequence[str], whole_sentences: bool) -> list[Any]:
        if self.name == CHARACTERS:
            return [letters(text) for text in texts]
        return [one.ids for one in self._made.encode_batch(list(texts), add_special_tokens=whole_sentences)]

    def _key(self, texts: Sequence[str], whole_sentences: bool) -> str:
        digest = blake2b(b"characters" if self.name == CHARACTERS else self.file.read_bytes(), digest_size=16)
        digest.update(bytes([whole_sentences]))
        for text in texts:
            raw = text.encode()
            digest.update(len(raw).to_bytes(8, "little") + raw)
        return digest.hexdigest()


def _cache() -> Path:
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "fedddp" / "tokens"


def padded(rows: Sequence[Tensor], size: int) -> Tensor:
    """Tokens and their mask [N, 2, size]. A longer row loses its end, but for its last token: the mark of the end."""
    out = torch.zeros(len(rows), 2, size, dtype=torch.int32)
    for place, row in zip(out, rows, strict=True):
        cut = row if len(row) <= size else torch.cat([row[: size - 1], row[-1:]])
        place[0, : len(cut)] = cut
        place[1, : len(cut)] = 1
    return out


def following(rows: Sequence[Tensor], size: int) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs [M, 2, size], the token that follows each position [M, size], and the row [M] that each piece is of.

    A longer row is several pieces, the last token of one being the first of the next.
    """
    pieces = [(number, part) for number, row in enumerate(rows) for part in _pieces(row, size)]
    targets = torch.full((len(pieces), size), IGNORED)
    for place, (_, part) in zip(targets, pieces, strict=True):
        place[: len(part) - 1] = part[1:]
    return padded([part[:-1] for _, part in pieces], size), targets, torch.tensor([n for n, _ in pieces]).long()


def _pieces(row: Tensor, size: int) -> list[Tensor]:
    parts = [row[start : start + size + 1] for start in range(0, len(row), size)]
    return [part for part in parts if len(part) > 1]
