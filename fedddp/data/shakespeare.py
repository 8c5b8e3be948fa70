"""Shakespeare by speaking role: 80 characters -> the next one; each role is a natural client (roles.jsonl.xz).

Each line of a .jsonl file is {"play": ..., "role": ..., "speeches": [...]}; a .txt file (tinyshakespeare) has blocks
"Role:" + speech between empty lines. Either may be packed as .xz. A role's speeches are joined by line breaks.
The last `test_fraction` of each role's text is its test part, and no window reaches over the border. Roles with
fewer than `minimum` training examples are left out. Letters are numbered as in LEAF.
"""

import json
import lzma
from pathlib import Path

import numpy as np
import torch

from fedddp.core.check import check
from fedddp.core.data import Dataset, Examples
from fedddp.data._files import find, reading
from fedddp.data._settings import Subset, check_test_fraction
from fedddp.data._text import LETTERS, windows

REMEDY = "it is made from the plays in XML of Jon Bosak: one line of JSON for each role with its play and speeches"


class Source(Subset):
    file: str = "roles.jsonl.xz"  # roles.jsonl.xz (a client is a role) or tinyshakespeare_input.txt.xz
    length: int = 80  # characters of an input, at least 1
    step: int = 10  # characters between two examples' beginnings, at least 1; LEAF has 1: ten times the data
    test_fraction: float = 0.1  # share of each role's text kept for the test, its end, in (0, 1)
    minimum: int = 1  # fewest training examples of a role, at least 1; smaller roles are left out

    def __post_init__(self) -> None:
        super().__post_init__()
        check("data.length", self.length, self.length >= 1, "at least 1")
        check("data.step", self.step, self.step >= 1, "at least 1")
        check_test_fraction(self.test_fraction)
        check("data.minimum", self.minimum, self.minimum >= 1, "at least 1")

    def load(self) -> Dataset:
        path = find(self.root, ("shakespeare",), (self.file, self.file.removesuffix(".xz")), REMEDY)
        train, test, names = [], [], []
        for name, text in roles(path):
            border = round((1 - self.test_fraction) * len(text))
            part = windows(text[:border], self.length, self.step)
            if len(part[1]) >= self.minimum:
                train.append(part)
                test.append(windows(text[border:], self.length, self.step))
                names.append(name)
        if not train:
            raise ValueError(f"{path}: no role has {self.minimum} examples; choose a smaller data.minimum")
        about = {"tokens": True, "label_names": tuple(LETTERS), "client_names": tuple(names)}
        return self.dataset(_join(train), _join(test), len(LETTERS), **about)


def roles(path: Path) -> list[tuple[str, str]]:
    """The name (with its play's, where that is known) and the text of each role, in the order of the file."""
    with reading(path, "speeches by role"):
        raw = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        if ".jsonl" in path.suffixes:
            found = [json.loads(line) for line in raw.splitlines() if line]
            return [(f"{one['role']} ({one['play']})", "\n".join(one["speeches"])) for one in found]
        spoken: dict[str, list[str]] = {}
        for block in raw.decode().strip().split("\n\n"):
            role, _, speech = block.partition(":\n")
            spoken.setdefault(role, []).append(speech)
        return [(role, "\n".join(speeches)) for role, speeches in spoken.items()]


def _join(parts: list[tuple[np.ndarray, np.ndarray]]) -> Examples:
    clients = np.repeat(np.arange(len(parts)), [len(targets) for _, targets in parts])
    inputs, targets = (np.concatenate(part) for part in zip(*parts, strict=True))
    return Examples(torch.from_numpy(inputs), torch.from_numpy(targets).long(), torch.from_numpy(clients))
