"""How a symmetric matrix [C, P, P] of each client travels: whole, as its largest eigenvectors, or its largest entries.

`compress` gives what arrives, and the message that carries it: gathered where a sum would be dense. `arrived` is the
weighted sum over clients of what arrived.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedddp.core.check import check
from fedddp.exchange.messages import Gather, Sum, Totals

Fields = dict[str, Sum | Gather]
KINDS = ("rank", "top", "identity")


@dataclass
class Compressor:
    kind: str
    amount: int  # eigenvectors of rank, entries of top

    def __post_init__(self) -> None:
        check("method.compressor", self.kind, self.kind in KINDS, " or ".join(KINDS))

    def compress(self, matrix: Tensor, weight: Tensor) -> tuple[Tensor, Fields]:
        """What arrives of matrix [C, P, P], and its message weighted by weight [C]."""
        if self.kind == "identity":
            return matrix, {"entries": Sum(weight.view(-1, 1) * matrix[:, *_triangle(matrix)])}
        return self._rank(matrix, weight) if self.kind == "rank" else self._top(matrix, weight)

    def _rank(self, matrix: Tensor, weight: Tensor) -> tuple[Tensor, Fields]:
        """The eigenvectors of the largest eigenvalues in size: the nearest matrix of that rank."""
        values, vectors = torch.linalg.eigh(matrix)
        keep = values.abs().topk(min(self.amount, values.shape[1])).indices  # [C, R]
        values = values.gather(1, keep)
        vectors = vectors.gather(2, keep.unsqueeze(1).expand(-1, matrix.shape[1], -1))  # [C, P, R]
        kept = vectors * values.unsqueeze(1) @ vectors.mT
        return kept, {"values": Gather(weight.view(-1, 1) * values), "vectors": Gather(vectors.mT.contiguous())}

    def _top(self, matrix: Tensor, weight: Tensor) -> tuple[Tensor, Fields]:
        """The largest entries in size, each standing for both of its mirror images."""
        entries = matrix[:, *_triangle(matrix)]
        places = entries.abs().topk(min(self.amount, entries.shape[1])).indices
        values = entries.gather(1, places)
        kept = torch.zeros_like(entries).scatter_(1, places, values)
        fields: Fields = {"values": Gather(weight.view(-1, 1) * values), "places": Gather(places.int())}
        return _symmetric(kept, matrix.shape[1]), fields

    def arrived(self, total: Totals, size: int) -> Tensor:
        """Σ_k weight_k matrix_k as it arrived, [P, P]; a client that was left out has zeros in its slot."""
        if self.kind == "identity":
            return _symmetric(total["entries"], size)
        values = total["values"].flatten()
        if self.kind == "rank":
            vectors = total["vectors"].reshape(-1, size)
            return vectors.T * values @ vectors
        entries = values.new_zeros(size * (size + 1) // 2)
        return _symmetric(entries.index_add_(0, total["places"].flatten().long(), values), size)


def _triangle(matrix: Tensor) -> tuple[Tensor, Tensor]:
    """Where the entries on and above the diagonal are."""
    rows, columns = torch.triu_indices(matrix.shape[-1], matrix.shape[-1], device=matrix.device)
    return rows, columns


def _symmetric(entries: Tensor, size: int) -> Tensor:
    """The matrix [..., P, P] whose entries on and above the diagonal are given."""
    matrix = entries.new_zeros(*entries.shape[:-1], size, size)
    rows, columns = _triangle(matrix)
    matrix[..., rows, columns] = entries
    matrix[..., columns, rows] = entries
    return matrix
