"""Public ranges: grids that depend on nobody's numbers.

    each client's value is clipped to [-range, range], a mean's weight to [0, weight]; what was clipped is counted

Without ranges, ranks agree on a grid from their largest numbers (`Reduction.exponents`), which tells something of them.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedddp.exchange.messages import Gather, Mean, Message, Sum

EVERY, WEIGHT, PRECISION = "all", "weight", "_precision"
ENGINE = "engine/"  # fields of the engine's own


class NotPublic(ValueError):
    """A message would tell more than sums within public ranges."""


@dataclass(frozen=True)
class Ranges:
    given: Mapping[str, float]  # field -> largest |number| that a client may send; `all` for those not named
    weight: float  # the largest weight of a client in a mean
    clients: int  # that may be added up in one contribution
    gathered: Sequence[str] = ()  # fields that may be gathered, row by row, all the same
    strict: bool = True  # whether other gathered fields are refused

    def of(self, name: str, rows: int) -> list[float]:
        """Of each row: natural parameters [2, P] may have a range of their own for the precision."""
        if name.startswith(ENGINE):
            return [2.0**40] * rows
        first = self.given.get(name, self.given.get(EVERY, 0.0))
        if not first:
            raise NotPublic(
                f"exchange.range: has none for the field {name}; write exchange.range.{name}=... (the largest number "
                f"that a client may send), or exchange.range.{EVERY}=..."
            )
        return [first, self.given.get(name + PRECISION, first)][:rows]

    def clip(self, message: Message) -> tuple[dict[str, Sum | Mean | Gather], Tensor]:
        """The message within its ranges, and how many numbers of each client were not [C]."""
        kept: dict[str, Sum | Mean | Gather] = {}
        count: Tensor | float = 0.0
        for name, entry in message.items():
            if isinstance(entry, Gather):
                self._may_gather(name)
                kept[name] = entry
                continue
            value = _clipped(entry.value, self.of(name, _rows(entry.value)))
            count = count + (value != entry.value).reshape(len(value), -1).sum(1).double()
            kept[name] = Sum(value) if isinstance(entry, Sum) else Mean(value, self._weights(entry))
        assert isinstance(count, Tensor), "a message has at least one field that is added up"
        return kept, count

    def exponents(self, fields: Sequence[tuple[str, str, int]]) -> list[int]:
        """Of each scale, from name, kind and rows of the fields: contributions are sums over at most `clients`."""
        found = []
        for name, kind, rows in fields:
            weight = self.weight if kind == "mean" else 1.0
            found += [_exponent(bound * weight * self.clients) for bound in self.of(name, rows)]
            found += [_exponent(weight * self.clients)] if kind == "mean" else []
        return found

    def _weights(self, entry: Mean) -> Tensor:
        weight = torch.as_tensor(entry.weight, dtype=entry.value.dtype, device=entry.value.device)
        return weight.expand(len(entry.value)).clamp(0.0, self.weight)

    def _may_gather(self, name: str) -> None:
        if self.strict and name not in self.gathered:
            raise NotPublic(
                f"exchange.secure: this method gathers {name} from every client by itself, which no sum can hide; "
                f"allow it with exchange.gathered=[{name}], or choose a method that sends sums"
            )


def _rows(value: Tensor) -> int:
    return 2 if value.dim() == 3 and value.shape[1] == 2 else 1


def _clipped(value: Tensor, bounds: Sequence[float]) -> Tensor:
    if len(set(bounds)) == 1:
        return value.clamp(-bounds[0], bounds[0])
    limit = value.new_tensor(bounds).view(1, -1, 1)
    return value.clamp(-limit, limit)


def _exponent(bound: float) -> int:
    """The least e with bound < 2^e."""
    return math.frexp(bound)[1]
