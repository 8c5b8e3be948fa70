"""Stacks of convolutions, max-pools, ReLUs and linear layers, forward and backward by hand, one client at a time.

A small network's step on one core is half oneDNN's own work and half what surrounds it: the module's and autograd's
calls, a gradient that is written, copied and read again. Here every layer calls the operation that autograd would, on
views of the flat parameters; images keep one layout all the way, activations are changed in place, and a step of plain
gradient descent is taken layer by layer. What is no such stack is left to autograd.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedddp.clients.chain import leaves, losses
from fedddp.core.objective import Objective
from fedddp.core.params import Layout

aten = torch.ops.aten
Params = dict[str, Tensor]
Take = Callable[[str, Callable[[], Tensor]], object]  # a parameter's name, and what makes its gradient


class Layer(Protocol):
    def forward(self, params: Params, value: Tensor) -> tuple[Tensor, Any]:
        """The output, and what the way back needs."""

    def backward(self, params: Params, kept: Any, slope: Tensor, take: Take, first: bool) -> Tensor | None:
        """The slope at the input from that at the output; none for the `first` layer that has parameters."""


@dataclass(frozen=True)
class Shape:
    """Flatten or unflatten."""

    module: nn.Module

    def forward(self, params: Params, value: Tensor) -> tuple[Tensor, torch.Size]:
        return self.module(value), value.shape

    def backward(self, params: Params, kept: torch.Size, slope: Tensor, take: Take, first: bool) -> Tensor:
        return slope.reshape(kept)


@dataclass(frozen=True)
class ReLU:
    """In place: no layer before it needs its own output on the way back."""

    def forward(self, params: Params, value: Tensor) -> tuple[Tensor, Tensor]:
        value = value.relu_()
        return value, value

    def backward(self, params: Params, kept: Tensor, slope: Tensor, take: Take, first: bool) -> Tensor:
        made: Tensor = aten.threshold_backward(slope, kept, 0)
        return made


@dataclass(frozen=True)
class Pool:
    """The largest of each square."""

    shape: tuple[Any, ...]  # kernel, stride, padding, dilation, whether to round up

    def forward(self, params: Params, value: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        made, where = aten.max_pool2d_with_indices(value, *self.shape)
        return made, (value, where)

    def backward(self, params: Params, kept: tuple[Tensor, Tensor], slope: Tensor, take: Take, first: bool) -> Tensor:
        value, where = kept
        made: Tensor = aten.max_pool2d_with_indices_backward(slope, value, *self.shape, where)
        return made


@dataclass(frozen=True)
class Linear:
    weight: str
    bias: str | None

    def forward(self, params: Params, value: Tensor) -> tuple[Tensor, Tensor]:
        return nn.functional.linear(value, params[self.weight], params[self.bias] if self.bias else None), value

    def backward(self, params: Params, kept: Tensor, slope: Tensor, take: Take, first: bool) -> Tensor | None:
        below = None if first else slope @ params[self.weight]  # before the weights may change
        take(self.weight, lambda: slope.mT @ kept)
        if self.bias:
            take(self.bias, lambda: slope.sum(0))
        return below


@dataclass(frozen=True)
class Conv:
    weight: str
    bias: str | None
    shape: tuple[Any, ...]  # stride, padding, dilation, transposed, output padding, groups

    def forward(self, params: Params, value: Tensor) -> tuple[Tensor, Tensor]:
        value = pixels_last(value)
        return aten.convolution(
            value, params[self.weight], params[self.bias] if self.bias else None, *self.shape
        ), value

    def backward(self, params: Params, kept: Tensor, slope: Tensor, take: Take, first: bool) -> Tensor | None:
        weight, wanted = params[self.weight], [not first, True, self.bias is not None]
        sizes = [len(weight)] if self.bias else None
        below, change, shift = aten.convolution_backward(slope, kept, weight, sizes, *self.shape, wanted)
        take(self.weight, lambda: change)
        if self.bias:
            take(self.bias, lambda: shift)
        return None if first else below


@dataclass(frozen=True)
class Stack:
    layers: Sequence[Layer]
    begins: int  # the first layer with parameters: nobody asks for a slope below it
    layout: Layout
    objective: Objective

    @classmethod
    def of(cls, module: nn.Module, layout: Layout, objective: Objective) -> "Stack | None":
        """The stack with convolutions that the module is; None for any other module."""
        layers: list[Layer] = []
        for name, child in leaves(module):
            layer = _layer(name, child)
            flat = any(isinstance(layer, Shape) and isinstance(layer.module, nn.Flatten) for layer in layers)
            if layer is None or not _follows(layer, layers[-1] if layers else None, flat):
                return None
            layers.append(layer)
        known = [name for layer in layers if isinstance(layer, Conv | Linear) for name in (layer.weight, layer.bias)]
        if not any(isinstance(layer, Conv) for layer in layers) or not isinstance(layers[-1], Linear):
            return None
        if sorted(filter(None, known)) != sorted(layout.names):  # shared or foreign parameters
            return None
        begins = next(at for at, layer in enumerate(layers) if isinstance(layer, Conv | Linear))
        return cls(tuple(layers), begins, layout, objective)

    def grad(self, theta: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor | None, grad: Tensor) -> Tensor:
        """The loss [] at theta [P] of a batch [B, ...]; its gradient goes into grad [P]."""
        into = self.layout.views(grad)
        return self._through(self.layout.views(theta), inputs, targets, weights, lambda n, made: into[n].copy_(made()))

    def lower(self, theta: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor | None, lr: float) -> Tensor:
        """The loss [] at theta [P], which goes down by lr times its gradient, in place."""
        params = self.layout.views(theta)
        return self._through(params, inputs, targets, weights, lambda n, made: params[n].sub_(made(), alpha=lr))

    @torch.no_grad()
    def _through(self, params: Params, value: Tensor, targets: Tensor, weights: Tensor | None, take: Take) -> Tensor:
        kept = []
        for layer in self.layers:
            value, needed = layer.forward(params, value)
            kept.append(needed)
        shares = None if weights is None else weights.unsqueeze(0)
        with torch.enable_grad():
            loss, slopes = losses(self.objective, value.unsqueeze(0), targets.unsqueeze(0), shares)
        slope: Tensor | None = slopes[0]
        for at in range(len(self.layers) - 1, self.begins - 1, -1):
            assert slope is not None  # only the last of these layers has none below
            slope = self.layers[at].backward(params, kept[at], slope, take, at == self.begins)
        return loss[0]


def pixels_last(images: Tensor) -> Tensor:
    """Images with their channels side by side, in which a processor's convolutions and pools are quickest."""
    if images.is_cuda or images.dim() != 4:
        return images
    last = images.contiguous(memory_format=torch.channels_last)
    _, channels, height, width = last.shape  # with one channel torch takes any layout for this one
    return last.as_strided(last.shape, (channels * height * width, 1, channels * width, channels))


def _follows(layer: Layer, before: Layer | None, flat: bool) -> bool:
    """Whether a layer may come after another; a ReLU changes what it is given."""
    if isinstance(layer, ReLU):
        return isinstance(before, Conv | Pool | Linear)
    return flat == isinstance(layer, Linear)


def _layer(name: str, module: nn.Module) -> Layer | None:
    """The layer that a module is; None for one that is not known here."""
    frozen = not all(parameter.requires_grad for parameter in module.parameters())
    if frozen:
        return None
    if type(module) is nn.Unflatten or (type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1)):
        return Shape(module)
    if type(module) is nn.ReLU:
        return ReLU()
    if type(module) is nn.MaxPool2d and not module.return_indices:
        sizes = [_pair(size) for size in (module.kernel_size, module.stride, module.padding, module.dilation)]
        return Pool((*sizes, module.ceil_mode))
    if type(module) is nn.Linear:
        return Linear(f"{name}weight", f"{name}bias" if module.bias is not None else None)
    if type(module) is nn.Conv2d and module.padding_mode == "zeros" and not isinstance(module.padding, str):
        shape = (module.stride, module.padding, module.dilation, False, [0, 0], module.groups)
        return Conv(f"{name}weight", f"{name}bias" if module.bias is not None else None, shape)
    return None


def _pair(size: Any) -> list[int]:
    return [size, size] if isinstance(size, int) else list(size)
