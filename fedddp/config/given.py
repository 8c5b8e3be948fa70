"""Objects of the user's in place of names: a module, tensors, clients; and how a run records them.

Nothing of them need be on disk. A run's config.yaml says what they were: a class with the digest of its source, shapes,
and digests of the numbers, which are part of the run's hash.
"""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import field
from hashlib import blake2b
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from fedddp.config.own import Recorded, digest_of, digest_of_tensors
from fedddp.core.data import Dataset, Examples
from fedddp.core.model import Model
from fedddp.core.shards import Split
from fedddp.data._arrays import Arrays

NAME = "given"
MOST_NAMES = 1000  # clients whose names a record lists


class GivenModel(Model, Recorded, extends=True):
    """A module as it is: its parameters are where the federation starts."""

    module: nn.Module

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        return copy.deepcopy(self.module)

    def recorded(self) -> dict[str, Any]:
        kinds = {type(part) for part in self.module.modules() if not type(part).__module__.startswith("torch.")}
        sources = sorted(digest_of(kind) for kind in kinds)
        kind = type(self.module)
        return {
            "name": f"{kind.__module__}:{kind.__qualname__}",
            "source": blake2b("".join([str(self.module), *sources]).encode(), digest_size=6).hexdigest(),
            "parameters": digest_of_tensors(*self.module.state_dict().values()),
        }


class GivenData(Arrays, Recorded, extends=True):
    """Tensors to train and to test on; what their element types mean is written in data/_arrays.py."""

    arrays: dict[str, Tensor] = field(default_factory=dict)

    def load(self) -> Dataset:
        return self.from_arrays(self.arrays, "data")

    def recorded(self) -> dict[str, Any]:
        shapes = {name: list(array.shape) for name, array in self.arrays.items()}
        return {"name": NAME, **shapes, "digest": digest_of_tensors(*self.arrays.values())}


class GivenSplit(Split, Recorded, extends=True):
    """Clients one after the other, each with so many examples."""

    sizes: tuple[int, ...] = ()
    names: tuple[str, ...] = ()

    def count(self) -> int:
        return len(self.sizes)

    def deal(self, examples: Examples, generator: torch.Generator) -> list[Tensor]:
        return list(torch.arange(sum(self.sizes)).split(list(self.sizes)))

    def recorded(self) -> dict[str, Any]:
        sizes = {"clients": len(self.sizes), "digest": digest_of_tensors(torch.tensor(self.sizes))}
        return {"name": NAME, **sizes, "names": list(self.names[:MOST_NAMES])}


def examples(part: Any, what: str) -> tuple[Tensor, Tensor]:
    """Inputs and targets of a pair of arrays, or of a torch Dataset of such pairs."""
    if isinstance(part, torch.utils.data.TensorDataset):
        part = part.tensors
    if isinstance(part, torch.utils.data.Dataset):
        part = _stack(part, what)
    if not isinstance(part, tuple | list) or len(part) != 2:
        raise ValueError(f"{what}: must be a pair (inputs, targets) or a torch Dataset, not {type(part).__name__}")
    inputs, targets = (torch.as_tensor(one) for one in part)
    if len(inputs) != len(targets) or not len(inputs):
        raise ValueError(f"{what}: has {len(inputs)} inputs and {len(targets)} targets")
    return inputs, targets


def _stack(part: Any, what: str) -> tuple[Tensor, Tensor]:
    try:
        rows = [part[index] for index in range(len(part))]
        inputs = torch.stack([torch.as_tensor(row[0]) for row in rows])
        return inputs, torch.as_tensor(np.stack([np.asarray(row[1]) for row in rows]))
    except (TypeError, ValueError, RuntimeError, IndexError) as error:
        raise ValueError(f"{what}: its items are no (tensor, target) pairs of one shape: {error}") from error


def given_data(train: Any, test: Any) -> GivenData:
    arrays: dict[str, Tensor] = {}
    for name, part in (("train", train), ("test", test)):
        arrays[f"{name}_inputs"], arrays[f"{name}_targets"] = examples(part, "data" if name == "train" else "test")
    return GivenData(arrays=arrays)


def given_clients(clients: Mapping[str, Any] | Iterable[Any], test: Any) -> tuple[GivenData, GivenSplit]:
    """Clients with their names and examples as one data set and its split; `test` may be by the same names."""
    named = dict(clients) if isinstance(clients, Mapping) else {str(i): part for i, part in enumerate(clients)}
    if not named:
        raise ValueError("clients: there are none")
    pairs = [examples(part, f"clients[{name!r}]") for name, part in named.items()]
    try:
        inputs, targets = (torch.cat(cast(list[Tensor], list(parts))) for parts in zip(*pairs, strict=True))
    except RuntimeError as error:
        raise ValueError(f"clients: their inputs or targets differ in shape: {error}") from error
    split = GivenSplit(sizes=tuple(len(pair[1]) for pair in pairs), names=tuple(map(str, named)))
    if not isinstance(test, Mapping):
        return given_data((inputs, targets), test), split
    if strangers := [name for name in test if name not in named]:
        raise ValueError(f"test: {strangers[0]!r} is none of the clients; name only {', '.join(map(str, named))}")
    tests = {name: examples(part, f"test[{name!r}]") for name, part in test.items()}
    data = given_data((inputs, targets), tuple(torch.cat(parts) for parts in zip(*tests.values(), strict=True)))
    numbers = {name: number for number, name in enumerate(named)}
    data.arrays["train_clients"] = torch.arange(len(named)).repeat_interleave(torch.tensor(split.sizes))
    tested = [torch.full((len(pair[1]),), numbers[name]) for name, pair in tests.items()]
    data.arrays["test_clients"] = torch.cat(tested)
    return data, split
