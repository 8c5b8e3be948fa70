"""What clients may send: a message is named tensors, each of which says how it is reduced over clients."""

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor


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
Totals = Mapping[str, Tensor]  # by the same names: what a message becomes
