"""What adapters of low rank have added to a frozen weight for good: a buffer beside the layer that they are on."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Merged(nn.Module):
    """x -> weight x, where weight [out, in] is what was merged so far of scale · B A, the parameters so named."""

    weight: Tensor

    def __init__(self, a: str, b: str, shape: tuple[int, int], scale: float) -> None:
        super().__init__()
        self.a, self.b, self.scale = a, b, scale
        self.register_buffer("weight", torch.zeros(shape))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight)


def merges(module: nn.Module) -> dict[str, Merged]:
    """Those inside a module, by name."""
    return {name: child for name, child in module.named_modules() if isinstance(child, Merged)}


def add_merged(layer: nn.Module, merged: Merged) -> None:
    """Let a layer give what was merged in addition."""
    layer.add_module("exact", merged)
    layer.register_forward_hook(_add)


def _add(layer: nn.Module, given: tuple[Any, ...], output: Tensor) -> Tensor:
    return output + layer.get_submodule("exact")(given[0])
