"""Posts by user from LEAF-style JSON, for both StackOverflow tasks."""

from pathlib import Path
from typing import Any, NamedTuple

from fedddp.data._files import reading
from fedddp.data._leaf import Numbers, folder, users

LONGEST = 10_000  # words of a text that may be asked for
REMEDY = (
    "write the users of TensorFlow Federated's stackoverflow set there as LEAF JSON "
    '{"user_data": {user: {"x": [text, ...], "y": ["tag|tag", ...]}}}'
)


class Posts(NamedTuple):
    texts: list[list[str]]
    tags: list[list[str]]
    clients: list[int]


def read(setting: str, most: int) -> tuple[Posts, Posts]:
    """Training and test posts, the first `most` of each user (0: all)."""
    place, numbers = folder(setting, ("stackoverflow",), REMEDY), Numbers()
    return _posts(place / "train", numbers, most), _posts(place / "test", numbers, most)


def _posts(place: Path, numbers: Numbers, most: int) -> Posts:
    posts = Posts([], [], [])
    for path, user, x, y in users(place):
        kept = slice(most or None)
        with reading(path, "posts"):
            posts.texts.extend(_pieces(text, " ") for text in x[kept])
            posts.tags.extend(_pieces(tags, "|") for tags in y[kept])
        posts.clients.extend([numbers[user]] * len(x[kept]))
    if not posts.texts:
        raise ValueError(f"{place}: holds no posts")
    return posts


def _pieces(value: Any, separator: str) -> list[str]:
    """A list as it is, a string in its pieces."""
    if isinstance(value, str):
        return [piece for piece in value.split(separator) if piece]
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is neither a text nor a list")
    return [str(piece) for piece in value]
