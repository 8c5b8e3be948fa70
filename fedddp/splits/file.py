"""From a file of yours: which examples each client holds.

    .json   [[0, 5, 7], [1, 2], ...], or {"name": [0, 5, 7], ...}: indices into the training examples
    .npz    `owner` [N]: the client of each example, -1 for none; or `order` and `offsets` as in Shards

No point twice; points that no client holds are left out.
"""

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedddp.core import shards
from fedddp.core.check import check, first_line
from fedddp.core.data import Examples
from fedddp.core.sound import whole
from fedddp.splits._dealing import by_owner


class Split(shards.Split):
    path: str = ""  # path of a .json or .npz file that lists each client's examples

    def deal(self, examples: Examples, generator: torch.Generator) -> list[Tensor]:
        path = Path(self.path).expanduser()
        check("split.path", self.path, path.suffix in (".json", ".npz") and path.is_file(), "a .json or .npz file")
        try:
            parts = _from_json(path) if path.suffix == ".json" else _from_npz(path, len(examples))
        except Exception as error:  # parsers and numpy each raise their own
            raise ValueError(f"split.path={self.path}: not a list of clients: {first_line(error)}") from error
        every = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long)
        if len(every) and (int(every.min()) < 0 or int(every.max()) >= len(examples)):
            raise ValueError(f"split.path={self.path}: names examples outside 0..{len(examples) - 1}")
        if len(every.unique()) != len(every):
            raise ValueError(f"split.path={self.path}: gives an example to two clients, or twice to one")
        return parts


def _from_json(path: Path) -> list[Tensor]:
    read = json.loads(path.read_text())
    named = read if isinstance(read, dict) else dict(enumerate(read))
    return [torch.from_numpy(whole(part, f"the examples of client {name}")) for name, part in named.items()]


def _from_npz(path: Path, examples: int) -> list[Tensor]:
    with np.load(path, allow_pickle=False) as arrays:
        if "owner" in arrays:
            owner = torch.from_numpy(whole(arrays["owner"], "owner"))
            if owner.shape != (examples,) or int(owner.max()) >= examples:
                raise ValueError(f"owner must have the client of each of {examples} examples, clients counted from 0")
            points = (owner >= 0).nonzero().flatten()
            return by_owner(owner[points], points, int(owner.max()) + 1)
        order, offsets = (torch.from_numpy(whole(arrays[name], name)) for name in ("order", "offsets"))
        if not len(offsets) or int(offsets[0]) != 0 or int(offsets[-1]) != len(order):
            raise ValueError(f"offsets must go from 0 to {len(order)}, as many as there are in order")
        return list(order.split(offsets.diff().tolist()))
