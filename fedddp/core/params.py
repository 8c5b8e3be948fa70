"""Any `nn.Module` as one flat vector of parameters, and back as views.

Buffers that training moves without a gradient (BatchNorm's running statistics) may lie behind the parameters, in a
vector [P + S]. model.buffers says what becomes of them: they are refused, stay as they are (freeze), are averaged with
the clients' numbers of examples as weights (average), or stay with each client (local).
"""

from dataclasses import dataclass
from math import prod
from types import MethodType

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Layout:
    """Where each named parameter lies in the flat vector."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    buffers: tuple[str, ...] = ()  # of those that are federated
    buffer_shapes: tuple[tuple[int, ...], ...] = ()

    @classmethod
    def of(cls, module: nn.Module, buffers: bool = False) -> "Layout":
        """Of what is trained; with `buffers`, of the module's buffers too."""
        named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        held = moving(module) if buffers else {}
        own = (tuple(n for n, _ in named), tuple(tuple(p.shape) for _, p in named))
        return cls(*own, tuple(held), tuple(tuple(b.shape) for b in held.values()))

    @property
    def sizes(self) -> list[int]:
        return [prod(shape) for shape in self.shapes]

    @property
    def numel(self) -> int:
        return sum(self.sizes)

    def views(self, theta: Tensor) -> dict[str, Tensor]:
        """theta [..., P] or [..., P + S] as {name: view [..., *shape]}; nothing is copied."""
        if theta.shape[-1] == self.numel:
            return _views(theta, self.names, self.shapes)
        return _views(theta, self.names + self.buffers, self.shapes + self.buffer_shapes)

    def of_buffers(self, state: Tensor) -> dict[str, Tensor]:
        """state [..., S] as views by the names of buffers."""
        return _views(state, self.buffers, self.buffer_shapes)

    def state(self, module: nn.Module) -> Tensor:
        """The buffers' vector [S], as a copy."""
        held = moving(module)
        return torch.cat([held[name].detach().reshape(-1).float() for name in self.buffers])

    def slices(self) -> dict[str, slice]:
        """{name: its place in the flat vector}."""
        ends = torch.tensor(self.sizes).cumsum(0).tolist()
        return {n: slice(e - s, e) for n, s, e in zip(self.names, self.sizes, ends, strict=True)}

    def flatten(self, named: dict[str, Tensor]) -> Tensor:
        """The flat vector [P] of named parameters, as a copy."""
        return torch.cat([named[name].detach().reshape(-1) for name in self.names])


def _views(vector: Tensor, names: tuple[str, ...], shapes: tuple[tuple[int, ...], ...]) -> dict[str, Tensor]:
    pieces = vector.split([prod(shape) for shape in shapes], dim=-1)
    lead = vector.shape[:-1]
    return {name: piece.view((*lead, *shape)) for name, shape, piece in zip(names, shapes, pieces, strict=True)}


def moving(module: nn.Module) -> dict[str, Tensor]:
    """Buffers that a module's state has and training may move: of real numbers, or one count."""
    kept = module.state_dict(keep_vars=True)
    return {n: b for n, b in module.named_buffers() if n in kept and (b.is_floating_point() or b.dim() == 0)}


def trained(layer: nn.Module) -> list[str]:
    """The names of a layer's own parameters that require a gradient; the others are frozen, and nobody sends them."""
    return [name for name, own in layer.named_parameters(recurse=False) if own.requires_grad]


def refuse_batch_norm(module: nn.Module) -> None:
    """Running statistics are state outside the parameters, and mix the examples of a batch."""
    for name, child in module.named_modules():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            raise ValueError(
                f"model: layer {name!r} is a {type(child).__name__}, whose running statistics are not "
                "parameters: choose model.buffers=average (over clients), local (each client keeps its own) or freeze "
                "(as they are), or use GroupNorm or LayerNorm instead"
            )


def freeze_batch_norm(module: nn.Module) -> None:
    """Layers with running statistics keep and use them, in training too."""
    for child in module.modules():
        if isinstance(child, nn.modules.batchnorm._NormBase) and child.track_running_stats:
            child.eval()
            child.train = MethodType(_stay, child)  # type: ignore[method-assign]


def _stay(layer: nn.Module, mode: bool = True) -> nn.Module:
    return layer
