"""What the server may learn from clients: sums, weighted means, or every row; exactly, in any order.

A float sum depends on its order, so on the number of ranks. Here every cohort's contribution is rounded once to
a fixed-point grid that all ranks agree on, and integers are added: the total has the same bits however the
cohorts are spread. A field's grid is 2^-(62 - e - ⌈log2 cohorts⌉) for contributions below 2^e, so nothing overflows
and a contribution keeps at least 50 bits below the field's largest entry. A gather is a sum too, in which each
client has a slot of its own: float bits plus zeros are the same float bits.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

NO_EXPONENT = -(2**31)  # of a field that is zero, or of a rank that has nothing to say about it
MOST_SCALES = 240


class Sum(NamedTuple):
    """Σ_k value_k."""

    value: Tensor  # [C, ...]


class Mean(NamedTuple):
    """Σ_k weight_k value_k / Σ_k weight_k."""

    value: Tensor  # [C, ...]
    weight: Tensor | float = 1.0  # [C] or one for all


class Gather(NamedTuple):
    """Every client's row, in the order of client ids."""

    value: Tensor  # [C, ...]


Message = Mapping[str, Sum | Mean | Gather]
Totals = Mapping[str, Tensor]


class Field(NamedTuple):
    """The shape of one message field: all that a rank without clients must know to take part."""

    name: str
    kind: str  # sum, mean or gather
    shape: tuple[int, ...]  # of one client's value
    dtype: str

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    @property
    def scales(self) -> int:
        """A mean's weight and each row of natural parameters [2, P] have a grid of their own."""
        rows = 2 if len(self.shape) == 2 and self.shape[0] == 2 else 1
        return {"sum": rows, "mean": rows + 1, "gather": 0}[self.kind]

    @property
    def torch_dtype(self) -> torch.dtype:
        dtype: torch.dtype = getattr(torch, self.dtype)
        return dtype

    @property
    def bytes(self) -> int:
        """What one client sends; a mean's weight travels with it."""
        return (self.numel + (self.kind == "mean")) * self.torch_dtype.itemsize

    def words(self, slots: int) -> int:
        """How many int64 the field takes in the flat buffer."""
        if self.kind == "gather":
            return slots * -(-self.numel * self.torch_dtype.itemsize // 8)
        return self.numel + (self.kind == "mean")


def _field(name: str, entry: Sum | Mean | Gather) -> Field:
    kind = type(entry).__name__.lower()
    return Field(name, kind, tuple(entry.value.shape[1:]), str(entry.value.dtype).removeprefix("torch."))


def _fold(entry: Sum | Mean, good: Tensor | None) -> list[Tensor]:
    """A cohort's rows added up: one flat tensor per scale; a bad client adds exactly zero."""
    value = entry.value
    if good is not None:  # zero times NaN is NaN, so choose rather than multiply
        value = torch.where(good.view(-1, *[1] * (value.dim() - 1)), value, 0)
    if isinstance(entry, Sum):
        return _by_scale(value.sum(0))
    weight = torch.as_tensor(entry.weight, dtype=value.dtype, device=value.device).expand(len(value))
    if good is not None:
        weight = torch.where(good, weight, 0)
    total = torch.tensordot(weight, value, dims=1)
    return [*_by_scale(total), weight.sum().reshape(1)]


def _by_scale(total: Tensor) -> list[Tensor]:
    if total.dim() == 2 and total.shape[0] == 2:
        return [total[0], total[1]]
    return [total.reshape(-1)]


@dataclass
class Ledger:
    """What one rank contributes to one exchange, kept until all ranks have agreed on the grids."""

    slots: int  # clients that take part, each with a slot for its gathered rows
    fields: list[Field] = field(default_factory=list)
    sums: list[list[Tensor]] = field(default_factory=list)  # per cohort, a flat tensor per scale
    rows: list[tuple[Tensor, list[Tensor]]] = field(default_factory=list)  # per cohort: slots, gathered values

    def add(self, message: Message, slot: Tensor, good: Tensor | None = None) -> None:
        """Take a cohort's message; `slot` [C] is each row's place, `good` [C] is False for a client left out."""
        fields = [_field(name, entry) for name, entry in message.items()]
        if self.fields and fields != self.fields:
            raise ValueError(f"a method's message changed between cohorts: {self.fields} became {fields}")
        if sum(f.scales for f in fields) > MOST_SCALES:
            raise ValueError(
                f"a message of {len(fields)} fields needs more than {MOST_SCALES} scales; use fewer fields"
            )
        self.fields = fields
        folded = [_fold(e, good) for e in message.values() if not isinstance(e, Gather)]
        self.sums.append([part for parts in folded for part in parts])
        keep = slice(None) if good is None else good
        gathered = [e.value[keep] for e in message.values() if isinstance(e, Gather)]
        self.rows.append((slot[keep], gathered))

    def exponents(self) -> list[int]:
        """Per scale the least e with all |contributions| < 2^e; padded to a fixed length."""
        found = [NO_EXPONENT] * MOST_SCALES
        for parts in self.sums:
            for i, part in enumerate(parts):
                largest = float(part.abs().amax()) if part.numel() else 0.0
                if not math.isfinite(largest):
                    raise FloatingPointError(f"a sum over clients overflowed (scale {i} of {self.fields})")
                if largest > 0:
                    found[i] = max(found[i], math.frexp(largest)[1])
        return found

    def describe(self) -> str:
        return json.dumps(self.fields)

    def learn(self, description: str) -> None:
        """Take the message's shape from a peer, for a rank that had no client to learn it from."""
        self.fields = [Field(n, k, tuple(s), d) for n, k, s, d in json.loads(description)]

    def encode(self, exponents: Sequence[int], cohorts: int, device: torch.device) -> Tensor:
        """All contributions of this rank as one flat int64 buffer."""
        flat = torch.zeros(sum(f.words(self.slots) for f in self.fields), dtype=torch.int64, device=device)
        bits = _grid_bits(exponents, cohorts)
        for parts in self.sums:
            at = 0
            for part, shift in zip(parts, bits, strict=False):
                flat[at : at + part.numel()] += _to_grid(part, shift)
                at += part.numel()
        at = sum(f.words(0) for f in self.fields)
        for i, fld in enumerate(f for f in self.fields if f.kind == "gather"):
            table = flat[at : at + fld.words(self.slots)].view(self.slots, -1)
            for slot, gathered in self.rows:
                table[slot.to(device)] = _as_words(gathered[i])
            at += table.numel()
        return flat

    def decode(self, flat: Tensor, exponents: Sequence[int], cohorts: int) -> dict[str, Tensor]:
        """World sums as totals, in the fields' own shapes and dtypes."""
        totals: dict[str, Tensor] = {}
        bits = iter(_grid_bits(exponents, cohorts))
        at = 0
        for fld in self.fields:
            if fld.kind == "gather":
                continue
            rows = fld.scales - (fld.kind == "mean")
            parts = flat[at : at + fld.numel].view(rows, -1)
            total = torch.stack([_from_grid(part, next(bits)) for part in parts])
            at += fld.numel
            if fld.kind == "mean":
                total = total / _from_grid(flat[at : at + 1], next(bits))
                at += 1
            totals[fld.name] = total.view(fld.shape).to(fld.torch_dtype)
        for fld in self.fields:
            if fld.kind == "gather":
                words = flat[at : at + fld.words(self.slots)].view(self.slots, -1)
                totals[fld.name] = _from_words(words, fld)
                at += words.numel()
        return {fld.name: totals[fld.name] for fld in self.fields}


def _grid_bits(exponents: Sequence[int], cohorts: int) -> list[int]:
    room = 62 - math.ceil(math.log2(max(cohorts, 1)))
    return [0 if e == NO_EXPONENT else min(room - e, 1000) for e in exponents]


def _to_grid(value: Tensor, bits: int) -> Tensor:
    return (value.double() * 2.0**bits).round_().long()


def _from_grid(value: Tensor, bits: int) -> Tensor:
    return value.double() * 2.0**-bits


def _as_words(value: Tensor) -> Tensor:
    """Each row's bytes as int64 words."""
    data = value.contiguous().view(len(value), -1).view(torch.uint8)
    padded = torch.nn.functional.pad(data, (0, -data.shape[1] % 8))
    return padded.view(torch.int64)


def _from_words(words: Tensor, fld: Field) -> Tensor:
    data = words.view(torch.uint8)[:, : fld.numel * fld.torch_dtype.itemsize]
    return data.contiguous().view(fld.torch_dtype).view(len(words), *fld.shape)
