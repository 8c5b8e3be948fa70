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
from fedddp.core.check import check
from fedddp.core.data import Examples
from fedddp.splits._dealing import by_owner


class Split(shards.Split):
    path: str = ""  # of the file

    def deal(self, examples: Examples, generator: torch.Generator) -> list[Tensor]:
        path = Path(self.path).expanduser()
        check("split.path", self.path, path.suffix in (".json", ".npz") and path.is_file(), "a .json or .npz file")
        try:
            parts = _from_json(path) if path.suffix == ".json" else _from_npz(path)
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise ValueError(f"split.path={self.path}: not a list of clients: {error}") from error
        every = torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long)
        if len(every) and (int(every.min()) < 0 or int(every.max()) >= len(examples)):
            raise ValueError(f"split.path={self.path}: names examples outside 0..{len(examples) - 1}")
        if len(every.unique()) != len(every):
            raise ValueError(f"split.path={self.path}: gives an example to two clients, or twice to one")
        return parts


def _from_json(path: Path) -> list[Tensor]:
    read = json.loads(path.read_text())
    lists = read.values() if isinstance(read, dict) else read
    return [torch.tensor([int(index) for index in part], dtype=torch.long) for part in lists]


def _from_npz(path: Path) -> list[Tensor]:
    with np.load(path, allow_pickle=False) as arrays:
        if "owner" in arrays:
            owner = torch.from_numpy(arrays["owner"].astype(np.int64))
            points = (owner >= 0).nonzero().flatten()
            return by_owner(owner[points], points, int(owner.max()) + 1)
        order, offsets = (torch.from_numpy(arrays[name].astype(np.int64)) for name in ("order", "offsets"))
        return list(order.split(offsets.diff().tolist()))
