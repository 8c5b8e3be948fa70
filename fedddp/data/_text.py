"""Text as numbers: LEAF's 80 letters, windows of characters, vocabularies of the most frequent words."""

from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedddp.core.data import IGNORED

# The order is LEAF's, so a model's output means the same letter there and here.
LETTERS = "\n !\"&'(),-.0123456789:;>?ABCDEFGHIJKLMNOPQRSTUVWXYZ[]abcdefghijklmnopqrstuvwxyz}"
_CODES = np.full(128, LETTERS.index(" "), np.uint8)
_CODES[np.frombuffer(LETTERS.encode("ascii"), np.uint8)] = np.arange(len(LETTERS))


def letters(text: str) -> NDArray[np.uint8]:
    """The number of each character in LETTERS; any other character is read as a space."""
    points = np.frombuffer(text.encode("utf-32-le"), np.uint32)
    return _CODES[np.minimum(points, len(_CODES) - 1)]  # the last code, delete, is no letter either


def windows(text: str, length: int, step: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """`length` characters [N, length] and the character that follows [N], every `step` characters."""
    codes = letters(text)
    if len(codes) <= length:
        return np.zeros((0, length), np.uint8), np.zeros(0, np.uint8)
    view = np.lib.stride_tricks.sliding_window_view(codes, length + 1)[::step]
    return view[:, :-1], view[:, -1]


def vocabulary(texts: Iterable[Sequence[str]], size: int) -> dict[str, int]:
    """The most frequent words, numbered from 1 by frequency and then by the alphabet."""
    counts: Counter[str] = Counter()
    for words in texts:
        counts.update(words)
    ranked = sorted(counts, key=lambda word: (-counts[word], word))
    return {word: number for number, word in enumerate(ranked[:size], start=1)}


def word_numbers(texts: Sequence[Sequence[str]], numbers: dict[str, int], length: int) -> Tensor:
    """[N, length] for a bag of words: 0 padding, 1..V the vocabulary, V + 1 unknown; longer texts are cut."""
    unknown = len(numbers) + 1
    out = np.zeros((len(texts), length), _smallest(unknown))
    for row, words in zip(out, texts, strict=True):
        found = [numbers.get(word, unknown) for word in words[:length]]
        row[: len(found)] = found
    return torch.from_numpy(out)


def next_words(texts: Sequence[Sequence[str]], numbers: dict[str, int], length: int) -> tuple[Tensor, Tensor]:
    """Inputs and next words [N, length] of sentences: BOS w1 w2 ... predicts w1 w2 ... EOS.

    0 padding, 1..V the vocabulary, then unknown, BOS, EOS; EOS only where the sentence is not cut short.
    """
    unknown, start, end = (len(numbers) + extra for extra in (1, 2, 3))
    sequence = np.zeros((len(texts), length + 1), np.int64)
    for row, words in zip(sequence, texts, strict=True):
        found = [start, *(numbers.get(word, unknown) for word in words), end][: length + 1]
        row[: len(found)] = found
    targets = torch.from_numpy(sequence[:, 1:].copy())
    targets[targets == 0] = IGNORED
    return torch.from_numpy(sequence[:, :-1].astype(_smallest(end))), targets


def _smallest(largest: int) -> type[np.int16] | type[np.int32]:
    return np.int16 if largest <= np.iinfo(np.int16).max else np.int32
