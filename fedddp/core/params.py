"""Any `nn.Module` as one flat vector of parameters, and back as views."""

from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Layout:
    """Where each named parameter lies in the flat vector."""

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, module: nn.Module) -> "Layout":
        named = [(n, p) for n, p in module.named_parameters() if p.requires_grad]
        return cls(tuple(n for n, _ in named), tuple(tuple(p.shape) for _, p in named))

    @property
    def sizes(self) -> list[int]:
        return [prod(shape) for shape in self.shapes]

    @property
    def numel(self) -> int:
        return sum(self.sizes)

    def views(self, theta: Tensor) -> dict[str, Tensor]:
        """theta [..., P] as {name: view [..., *shape]}; nothing is copied."""
        lead = theta.shape[:-1]
        pieces = theta.split(self.sizes, dim=-1)
        named = zip(self.names, self.shapes, pieces, strict=True)
        return {name: piece.view(*lead, *shape) for name, shape, piece in named}

    def slices(self) -> dict[str, slice]:
        """{name: its place in the flat vector}."""
        ends = torch.tensor(self.sizes).cumsum(0).tolist()
        return {n: slice(e - s, e) for n, s, e in zip(self.names, self.sizes, ends, strict=True)}

    def flatten(self, named: dict[str, Tensor]) -> Tensor:
        """The flat vector [P] of named parameters, as a copy."""
        return torch.cat([named[name].detach().reshape(-1) for name in self.names])


def refuse_batch_norm(module: nn.Module) -> None:
    """Running statistics are state outside the parameters, and mix the examples of a batch."""
    for name, child in module.named_modules():
        if isinstance(child, nn.modules.batchnorm._BatchNorm):
            raise ValueError(
                f"model: layer {name!r} is a {type(child).__name__}, whose running statistics are not "
                "parameters and have no federated meaning: use GroupNorm or LayerNorm instead"
            )
