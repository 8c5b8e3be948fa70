"""What the server may learn from clients: sums, weighted means, or every row; exactly, in any order.

A float sum depends on its order, so on the number of ranks. Here every cohort's contribution is rounded once to
a fixed-point grid that all ranks agree on, and integers are added: the total has the same bits however the
cohorts are spread. A field's grid is 2^-(62 - e - ⌈log2 cohorts⌉) for contributions below 2^e, so nothing overflows
and a contribution keeps at least 50 bits below the field's largest entry. A gather is a sum too, in which each
client has a slot of its own: float bits plus zeros are the same float bits.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from fedddp.exchange.fixed_point import Segment, Table, all_reduce
from fedddp.exchange.group import Exchange
from fedddp.exchange.masks import Hide, unmasked
from fedddp.exchange.messages import Gather, Mean, Message, Sum, Totals
from fedddp.exchange.spill import Numbers, Spill

NO_EXPONENT = -(2**31)  # of a field that is zero, or of a rank that has nothing to say about it
MOST_SCALES = 240


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
    def rows(self) -> int:
        """Each row of natural parameters [2, P] has a grid of its own."""
        if self.kind == "gather":
            return 0
        return 2 if len(self.shape) == 2 and self.shape[0] == 2 else 1

    @property
    def scales(self) -> int:
        """And so has a mean's weight."""
        return self.rows + (self.kind == "mean")

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
class Reduction:
    """What one rank contributes to one exchange, kept until all ranks have agreed on the grids."""

    slots: int  # clients that take part, each with a slot for its gathered rows
    fields: list[Field] = field(default_factory=list)
    sums: list[list[Numbers]] = field(default_factory=list)  # per cohort, a flat tensor per scale
    peaks: list[Tensor] = field(default_factory=list)  # per cohort, the least and the largest number of each
    rows: list[tuple[Tensor, list[Tensor]]] = field(default_factory=list)  # per cohort: slots, gathered values
    spill: Spill = field(default_factory=Spill)  # where sums wait

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
        self.hold([part for parts in folded for part in parts])
        gathered = [e.value if good is None else e.value[good] for e in message.values() if isinstance(e, Gather)]
        self.rows.append((slot if good is None else slot[good.to(slot.device)], gathered))

    def hold(self, parts: list[Tensor]) -> None:
        """Keep what a cohort adds to each scale [n] until the grids are known."""
        if parts:
            self.sums.append([self.spill(part) for part in parts])
            ends = [end for part in parts for end in _ends(part)]
            self.peaks.append(torch.stack(ends).double())

    def exponents(self) -> list[int]:
        """Per scale the least e with all |contributions| < 2^e; padded to a fixed length."""
        found = [NO_EXPONENT] * MOST_SCALES
        ends = torch.stack(self.peaks).abs().amax(0).tolist() if self.peaks else []  # a NaN stays one
        for i, peak in enumerate(map(_larger, ends[::2], ends[1::2])):
            if not math.isfinite(peak):
                raise FloatingPointError(f"a sum over clients overflowed (scale {i} of {self.fields})")
            if peak > 0:
                found[i] = math.frexp(peak)[1]
        return found

    def describe(self) -> str:
        return json.dumps(self.fields)

    def learn(self, description: str) -> None:
        """Take the message's shape from a peer, for a rank that had no client to learn it from."""
        self.fields = [Field(n, k, tuple(s), d) for n, k, s, d in json.loads(description)]

    @property
    def words(self) -> int:
        """How many int64 are added up over ranks."""
        return sum(fld.words(self.slots) for fld in self.fields)

    def total(
        self,
        exchange: Exchange,
        exponents: Sequence[int],
        cohorts: int,
        device: torch.device,
        hide: Hide = unmasked,
    ) -> dict[str, Tensor]:
        """The totals over all ranks, in the fields' own shapes and dtypes."""
        sums = [fld for fld in self.fields if fld.kind != "gather"]
        totals = {fld.name: torch.empty(fld.shape, dtype=fld.torch_dtype, device=device) for fld in sums}
        tables = self._tables(device)
        all_reduce(
            exchange.transport(self.words, device),
            [*self._segments(exponents, cohorts, totals), *tables.values()],
            hide,
        )
        totals |= {fld.name: _from_words(table.words, fld) for fld, table in tables.items()}
        return {fld.name: totals[fld.name] for fld in self.fields}

    def _segments(self, exponents: Sequence[int], cohorts: int, totals: Totals) -> list[Segment]:
        """Every run of numbers with a grid of its own; weights first, because means are divided by them."""
        room = 62 - math.ceil(math.log2(max(cohorts, 1)))
        weights, values, scale = [], [], 0

        def segment(total: Tensor, weight: Tensor) -> Segment:
            nonlocal scale
            e, parts, scale = exponents[scale], [parts[scale] for parts in self.sums], scale + 1
            return Segment(parts, 0 if e == NO_EXPONENT else min(room - e, 1000), total, weight)

        for fld in (fld for fld in self.fields if fld.name in totals):
            total = totals[fld.name].view(fld.rows, fld.numel // fld.rows)
            one = total.new_ones(1, dtype=torch.float64)
            weight = torch.empty_like(one) if fld.kind == "mean" else one
            values += [segment(row, weight) for row in total]
            if fld.kind == "mean":
                weights.append(segment(weight, one))
        return weights + values

    def _tables(self, device: torch.device) -> dict[Field, Table]:
        """A table [slots, words] of every gathered field, with the rows of this rank's clients."""
        tables = {}
        for i, fld in enumerate(fld for fld in self.fields if fld.kind == "gather"):
            words = torch.zeros(self.slots, fld.words(1), dtype=torch.int64, device=device)
            for slot, gathered in self.rows:
                words[slot.to(device)] = _as_words(gathered[i]).to(device)
            tables[fld] = Table(words)
        return tables


def _ends(part: Tensor) -> tuple[Tensor, Tensor]:
    """The least and the largest number; both not finite if one is NaN."""
    if not part.numel():
        return part.new_zeros(()), part.new_zeros(())
    low, high = part.aminmax()
    return low, high


def _larger(a: float, b: float) -> float:
    """NaN if one is."""
    return b if b > a or b != b else a


def _as_words(value: Tensor) -> Tensor:
    """Each row's bytes as int64 words."""
    data = value.contiguous().view(len(value), -1).view(torch.uint8)
    padded = torch.nn.functional.pad(data, (0, -data.shape[1] % 8))
    return padded.view(torch.int64)


def _from_words(words: Tensor, fld: Field) -> Tensor:
    data = words.view(torch.uint8)[:, : fld.numel * fld.torch_dtype.itemsize]
    return data.contiguous().view(fld.torch_dtype).view(len(words), *fld.shape)
