"""StackOverflow next-word prediction: sentences of 20 words -> each next word; users are natural clients (LEAF JSON).

The files are those of stackoverflow_tags ("y" is not looked at). Tokens: 0 padding, 1..V the most frequent words of the
training texts, then unknown, beginning and end of sentence, so there are V + 4 classes; the target of padding is
ignored. Each user keeps the first 128 sentences, as in "Posterior averaging (FedPA)".
"""

import torch

from fedddp.core.check import check
from fedddp.core.data import Dataset, Examples
from fedddp.data._settings import Subset
from fedddp.data._stackoverflow import LONGEST, Posts, read
from fedddp.data._text import next_words, vocabulary


class Source(Subset):
    words: int = 10000  # number of the most frequent words to tell apart, at least 1
    length: int = 20  # words of a sentence, at most 10,000; longer ones are cut, shorter ones padded
    most: int = 128  # sentences of a user, the first ones; 0: all

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("words", "length"):
            check(f"data.{key}", getattr(self, key), getattr(self, key) >= 1, "at least 1")
        check("data.length", self.length, self.length <= LONGEST, f"at most {LONGEST}")
        check("data.most", self.most, self.most >= 0, "0 for all, or a number of sentences")

    def load(self) -> Dataset:
        train, test = read(self.root, self.most)
        words = vocabulary(train.texts, self.words)
        names = ("", *words, "<unknown>", "<begin>", "<end>")
        known, new = (self._examples(posts, words) for posts in (train, test))
        return self.dataset(known, new, len(names), tokens=True, label_names=names)

    def _examples(self, posts: Posts, words: dict[str, int]) -> Examples:
        return Examples(*next_words(posts.texts, words, self.length), torch.tensor(posts.clients))
