"""StackOverflow tag prediction: bags of 10,000 words -> 500 tags, several each; users are natural clients (LEAF JSON).

stackoverflow/train/*.json and stackoverflow/test/*.json hold {"user_data": {user: {"x": [text], "y": [tags]}}}: a text
is a string of words with spaces between or a list of words, tags are "a|b|c" or a list. Words and tags are the most
frequent of the training texts. Inputs are kept as word numbers and become shares of words when a batch is made.
"""

import torch

from fedddp.core.check import check
from fedddp.core.data import Dataset, Examples
from fedddp.data._settings import Subset
from fedddp.data._stackoverflow import LONGEST, Posts, read
from fedddp.data._text import vocabulary, word_numbers


class Source(Subset):
    words: int = 10000  # number of the most frequent words to tell apart, at least 1
    tags: int = 500  # number of the most frequent tags to predict, at least 1
    length: int = 100  # most words of a text that are looked at, up to 10,000
    most: int = 1000  # examples of a user, the first ones; 0: all

    def __post_init__(self) -> None:
        super().__post_init__()
        for key in ("words", "tags", "length"):
            check(f"data.{key}", getattr(self, key), getattr(self, key) >= 1, "at least 1")
        check("data.length", self.length, self.length <= LONGEST, f"at most {LONGEST}")
        check("data.most", self.most, self.most >= 0, "0 for all, or a number of examples")

    def load(self) -> Dataset:
        train, test = read(self.root, self.most)
        words = vocabulary(train.texts, self.words)
        tags = vocabulary(train.tags, self.tags)
        known, new = (self._examples(posts, words, tags) for posts in (train, test))
        return self.dataset(known, new, len(tags), bag=len(words), label_names=tuple(tags))

    def _examples(self, posts: Posts, words: dict[str, int], tags: dict[str, int]) -> Examples:
        targets = torch.zeros(len(posts.texts), len(tags), dtype=torch.uint8)
        for row, named in zip(targets, posts.tags, strict=True):
            row[[tags[tag] - 1 for tag in named if tag in tags]] = 1
        return Examples(word_numbers(posts.texts, words, self.length), targets, torch.tensor(posts.clients))
