"""Kronecker-factored curvature (K-FAC) of each client's own data, by laplace-torch with its curvlinops backend.

A layer's block of the GGN is taken as outer ⊗ inner: the covariance of the gradients at its outputs times that of its
inputs; a bias is a layer whose input is 1. Factors are stacked over clients and can be flattened to one row for each,
so that a method can keep them as memory.
"""

from copy import deepcopy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedddp.cohort import Cohort
from fedddp.curvature import examples
from fedddp.objective import CrossEntropy, SquaredError
from fedddp.params import Layout
from fedddp.task import Task

CHUNK = 512  # examples at a time
LIKELIHOODS = {CrossEntropy: "classification", SquaredError: "regression"}


class Block(NamedTuple):
    """The precision outer ⊗ inner of one parameter of shape [outer, inner]."""

    outer: Tensor  # [C, o, o]
    inner: Tensor  # [C, i, i]


class Kron(NamedTuple):
    """Block-diagonal precisions [C, P, P], one Kronecker product for each parameter of the layout."""

    blocks: tuple[Block, ...]

    @classmethod
    def unflatten(cls, flat: Tensor, layout: Layout) -> "Kron":
        """From the rows [C, F] that `flatten` makes."""
        sizes = [size for pair in _sides(layout) for size in pair]
        parts = flat.split([size**2 for size in sizes], dim=1)
        square = [part.view(len(flat), size, size) for part, size in zip(parts, sizes, strict=True)]
        return cls(tuple(Block(a, b) for a, b in zip(square[::2], square[1::2], strict=True)))

    def flatten(self) -> Tensor:
        return torch.cat([factor.flatten(1) for block in self.blocks for factor in block], dim=1)

    def product(self, vector: Tensor, delta: float | Tensor = 0.0) -> Tensor:
        """(self + delta) @ vector for vector [C, P]; [C, P]."""
        pieces = self._split(vector)
        made = [(b.outer @ piece @ b.inner).flatten(1) for b, piece in zip(self.blocks, pieces, strict=True)]
        return torch.cat(made, dim=1) + delta * vector

    def solve(self, vector: Tensor, delta: float | Tensor = 0.0) -> Tensor:
        """(self + delta)⁻¹ @ vector for vector [C, P]; [C, P]."""
        made = []
        for block, piece in zip(self.blocks, self._split(vector), strict=True):
            (left, rows), (right, columns) = (torch.linalg.eigh(factor) for factor in block)
            spectrum = left.unsqueeze(2) * right.unsqueeze(1) + delta
            made.append((rows @ ((rows.mT @ piece @ columns) / spectrum) @ columns.mT).flatten(1))
        return torch.cat(made, dim=1)

    def logdet(self, delta: float | Tensor = 0.0) -> Tensor:
        """log |self + delta|; [C]."""
        total = self.blocks[0].outer.new_zeros(len(self.blocks[0].outer))
        for block in self.blocks:
            left, right = (torch.linalg.eigvalsh(factor).clamp_min(0) for factor in block)  # rounding goes below 0
            total = total + (left.unsqueeze(2) * right.unsqueeze(1) + delta).log().sum((1, 2))
        return total

    def diag(self) -> Tensor:
        """[C, P]."""
        sides = (tuple(factor.diagonal(dim1=1, dim2=2) for factor in block) for block in self.blocks)
        return torch.cat([(left.unsqueeze(2) * right.unsqueeze(1)).flatten(1) for left, right in sides], dim=1)

    def _split(self, vector: Tensor) -> list[Tensor]:
        shapes = [(b.outer.shape[1], b.inner.shape[1]) for b in self.blocks]
        pieces = vector.split([o * i for o, i in shapes], dim=-1)
        return [piece.reshape(len(vector), *shape) for piece, shape in zip(pieces, shapes, strict=True)]


def kron(cohort: Cohort, theta: Tensor) -> Kron:
    """K-FAC of f_k at theta [C, P]."""
    refuse_other_layers(cohort.task)
    from laplace.curvature import CurvlinopsGGN

    module = deepcopy(cohort.task.module).eval()
    likelihood = LIKELIHOODS[type(cohort.task.objective)]
    backend = CurvlinopsGGN(module, likelihood)
    found: list[list[list[Tensor]]] = [[] for _ in cohort.ids]
    with torch.enable_grad():
        for row, inputs, targets in examples(cohort, CHUNK):
            nn.utils.vector_to_parameters(theta[row].detach().clone(), module.parameters())
            if likelihood == "regression":
                targets = targets.reshape(len(targets), -1)
            factors = backend.kron(inputs, targets, N=int(cohort.sizes[row]))[1].kfacs
            found[row] = _add(found[row], [[f.detach() for f in pair] for pair in factors])
    return Kron(tuple(_stack(*layers) for layers in zip(*found, strict=True)))


def refuse_other_layers(task: Task) -> None:
    """K-FAC is defined for linear and convolutional layers, and laplace-torch for two kinds of losses."""
    if type(task.objective) not in LIKELIHOODS:
        raise ValueError(f"kron curvature: not for {type(task.objective).__name__}; use the diagonal")
    for name, layer in task.module.named_modules():
        if list(layer.parameters(recurse=False)) and not isinstance(layer, nn.Linear | nn.Conv2d):
            raise ValueError(
                f"kron curvature: layer {name!r} is a {type(layer).__name__}; only Linear and Conv2d have Kronecker "
                "factors: use the diagonal, or a model without it"
            )


def _add(total: list[list[Tensor]], more: list[list[Tensor]]) -> list[list[Tensor]]:
    """Factors of two chunks of one client: laplace-torch weighs them so that both sides simply add up."""
    if not total:
        return more
    return [[a + b for a, b in zip(left, right, strict=True)] for left, right in zip(total, more, strict=True)]


def _stack(*layers: list[Tensor]) -> Block:
    outer = torch.stack([layer[0] for layer in layers])
    inner = [layer[1] for layer in layers if len(layer) == 2]
    return Block(outer, torch.stack(inner) if inner else outer.new_ones(len(layers), 1, 1))


def _sides(layout: Layout) -> list[tuple[int, int]]:
    """(outer, inner) of each parameter: a weight is [outer, inner...], a bias [outer]."""
    return [(shape[0], size // shape[0]) for shape, size in zip(layout.shapes, layout.sizes, strict=True)]
