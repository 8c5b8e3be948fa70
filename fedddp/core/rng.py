"""Random streams named by what they are for, never by the rank that draws them."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import torch
from torch import Tensor

STREAMS = ("independent", "common", "frozen")
GOLDEN = -0x61C8864680B583EB  # 2^64 / golden ratio, as a signed 64-bit integer
_MIX = (-0x40A7B892E31B1A47, -0x6B2FB644ECCEEE15)  # the two multipliers of splitmix64


def key(*name: int | str) -> int:
    """A 63-bit number for a name such as (seed, "noise", round, client)."""
    return _number(blake2b(repr(name).encode(), digest_size=8).digest())


def _number(digest: bytes) -> int:
    return int.from_bytes(digest, "little") >> 1


def stream(*name: int | str) -> torch.Generator:
    """An independent generator for a name."""
    return torch.Generator().manual_seed(key(*name))


@dataclass(frozen=True)
class Streams:
    """A run's random streams.

    kind    independent  every client and round draws its own
            common       all clients share a round's draws (common random numbers), and go through their examples in
                         one order of classes, so that a step sees about the same labels everywhere
            frozen       the same draws for all clients in every round: to reproduce published runs only
    """

    seed: int
    kind: str = "independent"

    def key(self, purpose: str, round_: int, client: int, *more: int) -> int:
        if self.kind == "common":
            client = -1
        elif self.kind == "frozen":
            round_, client = -1, -1
        return key(self.seed, purpose, round_, client, *more)

    def keys(self, purpose: str, round_: int, clients: Sequence[int]) -> list[int]:
        """`key` of each client; what their names share is written and hashed once."""
        if self.kind != "independent":
            return [self.key(purpose, round_, -1)] * len(clients)
        shared = blake2b(f"({self.seed!r}, {purpose!r}, {round_!r}, ".encode(), digest_size=8)
        found = []
        for client in clients:
            own = shared.copy()
            own.update(b"%d)" % client)
            found.append(_number(own.digest()))
        return found

    def generator(self, purpose: str, round_: int, client: int, *more: int) -> torch.Generator:
        return torch.Generator().manual_seed(self.key(purpose, round_, client, *more))


def permutations(keys: Tensor, sizes: Tensor, most: int) -> Tensor:
    """Row k is a permutation of 0..sizes[k]-1 that depends on keys[k] alone; [C, most], where `most` bounds the sizes.

    Entries are ordered by a hash (splitmix64) of key and position, so all rows are made at once and no
    row depends on its neighbours. What lies behind a row's size is the remaining positions in order.
    """
    position = torch.arange(most, device=keys.device)
    bits = _shift_right(mix(keys.unsqueeze(1) + (position + 1) * GOLDEN), 1)
    bits = torch.where(position < sizes.unsqueeze(1), bits, torch.iinfo(torch.int64).max)
    return bits.argsort(dim=1, stable=True)


def mix(bits: Tensor) -> Tensor:
    """splitmix64's finaliser: every bit of the result depends on every bit given."""
    for shift, multiplier in ((30, _MIX[0]), (27, _MIX[1])):
        bits = (bits ^ _shift_right(bits, shift)) * multiplier
    return bits ^ _shift_right(bits, 31)


def _shift_right(bits: Tensor, by: int) -> Tensor:
    """A logical shift: the sign bit is not copied."""
    return (bits >> by) & ((1 << (64 - by)) - 1)
