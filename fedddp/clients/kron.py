"""Kronecker-factored curvature (K-FAC) of each client's own data: what laplace-torch makes, in half its time.

A layer's block of the GGN is taken as outer ⊗ inner: the sum of g gᵀ over the gradients g at its outputs (a column of
the loss's curvature each) times the mean of x xᵀ over its inputs x; a bias is a layer whose input is 1. Positions of a
convolution count as examples. Factors are stacked over clients and can be flattened to one row for each, so that a
method can keep them as memory.
"""

from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedddp.clients.cohort import Cohort
from fedddp.clients.curvature import examples, patches_of, roots, slopes_at, tapped
from fedddp.core.params import Layout, trained
from fedddp.core.task import Task

CHUNK = 512  # examples at a time


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

    def product(self, vector: Tensor, delta: float = 0.0) -> Tensor:
        """(self + delta) @ vector for vectors [C, P], or several for each client [C, M, P]; of the same shape.

        Parameters of equal shape are multiplied together.
        """
        stack, shapes = vector.reshape(len(vector), -1, vector.shape[-1]), self._shapes
        made = list(stack.split([o * i for o, i in shapes], dim=-1))
        for group in _alike(shapes):
            found = _products([self.blocks[n] for n in group], [made[n] for n in group])
            for number, piece in zip(group, found, strict=True):
                made[number] = piece
        total = torch.cat(made, dim=-1)
        return (total.add_(stack, alpha=delta) if delta else total).view(vector.shape)

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
        shapes = self._shapes
        pieces = vector.split([o * i for o, i in shapes], dim=-1)
        return [piece.reshape(len(vector), *shape) for piece, shape in zip(pieces, shapes, strict=True)]

    @property
    def _shapes(self) -> tuple[tuple[int, int], ...]:
        """(outer, inner) of each parameter."""
        return tuple((b.outer.shape[1], b.inner.shape[1]) for b in self.blocks)


class KronSum(NamedTuple):
    """Σ_k outer_k ⊗ inner_k, laid out so that all clients together are two products for each parameter.

    A bias's inner is a number, so that its sum is one matrix.
    """

    left: tuple[Tensor | None, ...]  # [o * K, o] the rows of all outer_k, those of equal number together; no bias's
    right: tuple[Tensor, ...]  # [K * i, i] all inner_k below each other; of a bias [o, o] the sum

    @classmethod
    def of(cls, kron: Kron, over: Tensor | float = 1.0) -> "KronSum":
        """The sum of the rows of `kron`, divided by `over`."""
        left: list[Tensor | None] = []
        right = []
        for outer, inner in kron.blocks:
            bias = inner.shape[1] == 1
            left.append(None if bias else outer.transpose(0, 1).reshape(-1, outer.shape[2]))
            right.append(((outer * inner).sum(0) if bias else inner.reshape(-1, inner.shape[2])) / over)
        return cls(tuple(left), tuple(right))

    def less(self, pull: Tensor) -> Callable[[Tensor], Tensor]:
        """theta [1, P] -> this sum times theta, less pull [P]; the result [1, P] lasts until the next is made."""
        made = torch.empty_like(pull)
        shapes = [(a.shape[1] if a is not None else len(b), b.shape[1] if a is not None else 1) for a, b in self._pairs]
        sizes = [o * i for o, i in shapes]
        places = list(zip(self._pairs, shapes, pull.split(sizes), made.split(sizes), strict=True))

        def product(theta: Tensor) -> Tensor:
            for ((left, right), (o, i), less, into), piece in zip(places, theta[0].split(sizes), strict=True):
                if left is None:
                    torch.addmv(less, right, piece, beta=-1, out=into)
                else:
                    each = torch.mm(left, piece.view(o, i)).view(o, -1)  # outer_k theta side by side
                    torch.addmm(less.view(o, i), each, right, beta=-1, out=into.view(o, i))
            return made.unsqueeze(0)

        return product

    @property
    def _pairs(self) -> list[tuple[Tensor | None, Tensor]]:
        return list(zip(self.left, self.right, strict=True))


def _products(blocks: list[Block], pieces: list[Tensor]) -> tuple[Tensor, ...]:
    """outer @ piece @ inner for blocks of one shape and their pieces [C, M, outer * inner]; the same shapes.

    The rows of all M pieces lie side by side, [outer, M, inner], so that each factor takes part in one product.
    """
    outer, inner = (_joined(list(factors)) for factors in zip(*blocks, strict=True))
    (clients, models, _), o, i = pieces[0].shape, outer.shape[1], inner.shape[1]
    laid = _joined([piece.view(clients, models, o, i).transpose(1, 2).reshape(-1, o, models * i) for piece in pieces])
    made = torch.bmm(torch.bmm(outer, laid).view(-1, o * models, i), inner)
    return made.view(len(blocks), clients, o, models, i).transpose(2, 3).flatten(3).unbind()


@cache
def _alike(shapes: tuple[tuple[int, int], ...]) -> list[list[int]]:
    """The numbers of the parameters, those of equal shape together."""
    return [[n for n, other in enumerate(shapes) if other == shape] for shape in dict.fromkeys(shapes)]


def _joined(parts: list[Tensor]) -> Tensor:
    """Along the first axis; one alone is not copied."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def kron(cohort: Cohort, theta: Tensor) -> Kron:
    """K-FAC of f_k at theta [C, P]."""
    refuse_other_layers(cohort.task)
    whole, theta = cohort.whole(theta)
    wanted = {_prefix(name) for name in cohort.task.layout.names}
    found: list[dict[str, Block]] = [{} for _ in cohort.ids]
    for row, inputs, targets in examples(whole, CHUNK):
        for prefix, more in _factors(whole.task, theta[row], inputs, targets, wanted).items():
            sofar = found[row].get(prefix)
            found[row][prefix] = more if sofar is None else Block(sofar.outer + more.outer, sofar.inner + more.inner)
    return Kron(tuple(_block(name, found, cohort.num_examples) for name in cohort.task.layout.names))


def refuse_other_layers(task: Task) -> None:
    """K-FAC is defined for linear and convolutional layers."""
    for name, layer in task.module.named_modules():
        if trained(layer) and not _has_factors(layer):
            raise ValueError(
                f"kron curvature: layer {name!r} is a {type(layer).__name__}; only Linear and Conv2d (without groups, "
                "padded with a number of zeros) have Kronecker factors: use the diagonal, or a model without it"
            )


def _has_factors(layer: nn.Module) -> bool:
    if isinstance(layer, nn.Conv2d):
        return layer.groups == 1 and layer.padding_mode == "zeros" and not isinstance(layer.padding, str)
    return isinstance(layer, nn.Linear)


def _factors(task: Task, theta: Tensor, inputs: Tensor, targets: Tensor, wanted: set[str]) -> dict[str, Block]:
    """Σ_i Σ_c g gᵀ and the mean over positions of Σ_i x xᵀ of each layer `wanted`, by its parameters' names' prefix."""
    taps, outputs = tapped(task, theta, inputs)
    taps = [tap for tap in taps if tap[0] in wanted]
    prefixes = [tap[0] for tap in taps]
    if len(set(prefixes)) < len(prefixes):
        raise ValueError("kron curvature: a layer is called more than once in the model; use the diagonal")
    outer = [theta.new_zeros(()) for _ in taps]
    for slopes in slopes_at(taps, outputs, roots(task.objective, outputs.detach(), targets)):
        outer = [sum_ if g is None else sum_ + _second_moment(g) for sum_, g in zip(outer, slopes, strict=True)]
    inner = [_inner(layer, x) for _, layer, x, _ in taps]
    return {p: Block(o.unsqueeze(0), i.unsqueeze(0)) for p, o, i in zip(prefixes, outer, inner, strict=True)}


def _second_moment(g: Tensor) -> Tensor:
    """Σ g gᵀ over examples and positions, of a linear layer's outputs [B, ..., o] or a convolution's [B, o, H, W]."""
    flat = g.transpose(0, 1).flatten(1) if g.dim() == 4 else g.flatten(0, -2).mT
    return flat @ flat.mT


def _inner(layer: nn.Module, x: Tensor) -> Tensor:
    """Σ x xᵀ over examples, in the mean over positions."""
    patches = patches_of(layer, x)
    if patches is None:
        flat = x.flatten(0, -2)
        return flat.mT @ flat * (len(x) / len(flat))
    size = patches.shape[2]
    return torch.addbmm(x.new_zeros(size, size), patches.mT, patches) / patches.shape[1]


def _block(name: str, found: list[dict[str, Block]], num_examples: Tensor) -> Block:
    """Of one parameter, a row for each client: a weight's inputs are averaged over examples, a bias's are 1."""
    layers = [own[_prefix(name)] for own in found]
    outer = torch.cat([layer.outer for layer in layers])
    if name.rpartition(".")[2] == "bias":
        return Block(outer, outer.new_ones(len(layers), 1, 1))
    return Block(outer, torch.cat([layer.inner for layer in layers]) / num_examples.view(-1, 1, 1))


def _prefix(name: str) -> str:
    """Of a parameter's name, what its layer's others begin with too."""
    return name[: name.rfind(".") + 1]


@cache
def _sides(layout: Layout) -> list[tuple[int, int]]:
    """(outer, inner) of each parameter: a weight is [outer, inner...], a bias [outer]."""
    return [(shape[0], size // shape[0]) for shape, size in zip(layout.shapes, layout.sizes, strict=True)]
