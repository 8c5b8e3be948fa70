"""LEAF's JSON: {"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}.

A set is a folder with `train` and `test`, each holding any number of such files.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedddp.core.data import root
from fedddp.data._files import missing, reading


def folder(setting: str, places: tuple[str, ...], remedy: str) -> Path:
    """The first of `places` under the data root that has JSON files in `train` and `test`."""
    found = [root(setting) / place for place in places]
    for place in found:
        if all(next((place / part).glob("*.json"), None) for part in ("train", "test")):
            return place
    raise missing("train/*.json and test/*.json", found, remedy)


def users(place: Path) -> Iterator[tuple[Path, str, list[Any], list[Any]]]:
    """(file, user, x, y) of every user, file by file in the order of their names."""
    for path in sorted(place.glob("*.json")):
        with reading(path, "LEAF JSON"):
            held = json.loads(path.read_bytes())["user_data"]
            found = [(path, str(user), list(data["x"]), list(data["y"])) for user, data in held.items()]
            for _, user, x, y in found:
                if len(x) != len(y):
                    raise ValueError(f"user {user} has {len(x)} x and {len(y)} y")
        yield from found


class Numbers(dict[str, int]):
    """Users in the order in which they were first met."""

    def __missing__(self, user: str) -> int:
        self[user] = len(self)
        return self[user]
