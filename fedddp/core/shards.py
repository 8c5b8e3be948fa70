"""What a split is: a class with its settings as annotated fields and `deal()`, which says which examples are whose.

    class Split(shards.Split):
        clients: int = 10              # an annotated field is a setting: split.clients
        def deal(self, examples, generator):
            return list(torch.randperm(len(examples), generator=generator).tensor_split(self.clients))
        def count(self):
            return self.clients

Splits into a given number of clients derive from `Counted` or `Mixed` in fedddp/splits/_dealing.py.
"""

from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from hashlib import blake2b
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedddp.core.check import check
from fedddp.core.contract import Contract
from fedddp.core.data import Examples
from fedddp.core.rng import stream

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class Shards:
    """Which examples are whose: client k holds order[offsets[k]:offsets[k + 1]]."""

    order: Tensor  # [N] indices into the training examples, client after client
    offsets: Tensor  # [K + 1]

    @classmethod
    def of(cls, parts: Iterable[Tensor], minimum: int = 1) -> "Shards":
        """Join the clients' indices; a client with fewer than `minimum` examples is refused, and one with none."""
        parts = list(parts)
        sizes = torch.tensor([len(part) for part in parts])
        if len(sizes) == 0:
            raise ValueError("split: no client is left; ask for less (split.minimum, split.keep), or use more data")
        small = int(sizes.argmin())
        if int(sizes[small]) < max(minimum, 1):
            empty = ", or split.minimum=1: an empty client cannot train" if minimum < 1 else ""
            raise ValueError(
                f"split: client {small} of {len(sizes)} has {int(sizes[small])} examples, "
                f"fewer than {max(minimum, 1)}: "
                f"use fewer clients (split.clients), more data, or a more even split (a larger split.alpha){empty}"
            )
        offsets = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
        return cls(torch.cat(parts), offsets)

    @classmethod
    def deal(cls, split: "Split", examples: Examples, seed: int) -> "Shards":
        """What a `Split` makes of the training examples with the split's own seed."""
        wanted = split.count() or 0
        if wanted > len(examples) and not split.repeats:  # said before as many lists are made
            raise ValueError(
                f"split.clients={wanted}: more than the {len(examples)} training examples; "
                "use fewer clients (split.clients), or more data"
            )
        parts = split.deal(examples, stream(seed, "split"))
        return parts if isinstance(parts, Shards) else cls.of(parts, split.minimum)

    def refuse_strange(self, examples: int) -> None:
        """Whoever dealt them, clients have examples, and these exist."""
        if self.num_clients < 1 or int(self.num_examples.min()) < 1:
            raise ValueError(f"split: client {int(self.num_examples.argmin())} is empty and cannot train; leave it out")
        if self.order.dtype != torch.int64 or not 0 <= int(self.order.min()) <= int(self.order.max()) < examples:
            raise ValueError(f"split: deals examples that are no integers from 0 to {examples - 1}")

    @classmethod
    def none(cls) -> "Shards":
        """No clients."""
        return cls(torch.zeros(0, dtype=torch.long), torch.zeros(1, dtype=torch.long))

    def beside(self, other: "Shards") -> "Shards":
        """Our clients, and behind them the others."""
        offsets = torch.cat([self.offsets, len(self.order) + other.offsets[1:]])
        return Shards(torch.cat([self.order, other.order]), offsets)

    def take(self, clients: Tensor) -> "Shards":
        """Some of the clients, in this order."""
        return Shards.of([self.of_client(client) for client in clients.tolist()]) if len(clients) else Shards.none()

    @property
    def num_clients(self) -> int:
        return len(self.offsets) - 1

    @cached_property
    def num_examples(self) -> Tensor:
        return self.offsets.diff()

    def of_client(self, client: int) -> Tensor:
        return self.order[self.offsets[client] : self.offsets[client + 1]]

    def __len__(self) -> int:
        return self.num_clients

    def __iter__(self) -> Iterator[Tensor]:
        """Every client's indices."""
        return (self.of_client(client) for client in range(len(self)))

    def count(self, targets: Tensor, classes: int) -> Counts:
        """[K, classes] examples of each class with each client; of several labels each counts; else one column for all.

        Here and not beside its picture: every run counts, and matplotlib takes half a second to import.
        """
        owner = np.repeat(np.arange(self.num_clients), self.num_examples.numpy())
        held = targets[self.order].numpy()
        table = np.zeros((self.num_clients, max(classes, 1)), dtype=np.int64)
        if not classes or (held.ndim == 2 and held.shape[1] != classes):  # regression; a token for each position
            return self.num_examples.numpy()[:, None]
        if held.ndim == 2:
            np.add.at(table, owner, held)
        else:
            np.add.at(table, (owner, held), 1)
        return table

    def divided(self, count: int, key: str) -> list["Shards"]:
        """`count` disjoint parts of every client's examples, as even as can be; who gets which depends on places alone.

        Every count-th example, and so in a client's order by class, too, parts are alike.
        """
        short = int(self.num_examples.argmin())
        if int(self.num_examples[short]) < count:
            raise ValueError(
                f"{key}={count}: client {short} has {int(self.num_examples[short])} examples only; ask for fewer parts"
            )
        return [Shards.of(own[number::count] for own in self) for number in range(count)]

    def virtual(self, count: int) -> "Shards":
        """Every client as so many, one after the other, each with a part of its examples."""
        if count == 1:
            return self
        parts = self.divided(count, "split.virtual")
        return Shards.of(part.of_client(client) for client in range(len(self)) for part in parts)

    def pooled(self) -> "Shards":
        """All examples in the hands of one client."""
        return Shards(self.order, torch.tensor([0, len(self.order)]))

    def without(self, away: list[int]) -> "Shards":
        """The other clients, numbered anew in the same order; the examples of those away are nobody's."""
        if not away:
            return self
        wrong = [client for client in away if not 0 <= client < self.num_clients]
        kept = [client for client in range(self.num_clients) if client not in away]
        if wrong or not kept:
            raise ValueError(
                f"federation.without={away}: must be some of the clients, whose numbers are 0 to {self.num_clients - 1}"
            )
        return self.take(torch.tensor(kept))

    def digest(self) -> str:
        """A hash of the whole split, for the run's record."""
        digest = blake2b(self.order.numpy().tobytes(), digest_size=8)
        digest.update(self.offsets.numpy().tobytes())
        return digest.hexdigest()


class Split(Contract, extends=True):
    repeats: ClassVar[bool] = False  # True: an example may be given out more than once
    minimum: int = 1  # fewest examples of a client, at least 0; a split that deals fewer is refused

    def __post_init__(self) -> None:
        check("split.minimum", self.minimum, self.minimum >= 0, "at least 0")

    @abstractmethod
    def deal(self, examples: Examples, generator: torch.Generator) -> list[Tensor] | Shards:
        """Each client's indices into the training examples; Shards where there may be too many clients for a list.

        The generator belongs to the split's own seed, apart from the model's and the sampling's. A client in the list
        with fewer than `minimum` examples is refused; Shards are taken as they are.
        """

    def count(self) -> int | None:
        """How many clients there will be, where that is known before the data is read."""
        return None
