"""Stacks of convolutions, max-pools, ReLUs, linear layers and dropout, forward and backward by hand.

A small network's step on one core is half oneDNN's own work and half what surrounds it: the module's and autograd's
calls, a gradient that is written, copied and read again. Here every layer calls the operation that autograd would, on
views of the flat parameters; images keep one layout all the way, activations are changed in place, and a step of plain
gradient descent is taken layer by layer. What is no such stack is left to autograd.

Of several clients the convolutions are one, in groups: their images lie side by side as channels of one image, and
each group has a client's own weights. Of a single client all that is a view.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedddp.clients.chain import leaves, losses
from fedddp.clients.dropout import TOGETHER, Masked
from fedddp.core.objective import Objective
from fedddp.core.params import Layout

aten = torch.ops.aten
REGISTER = 16  # numbers, at most
SIDE = 8  # parts of a batch side by side: more are no quicker
Params = Mapping[str, Tensor]  # [c, ...] each, and masks [c, B, ...] of dropout layers


class Take(Protocol):
    """What becomes of gradients."""

    def given(self, name: str, grad: Tensor) -> object:
        """Of a parameter [c, ...]."""

    def product(self, name: str, left: Tensor, right: Tensor) -> object:
        """Of a matrix, which is left @ right."""


@dataclass(frozen=True)
class Writes:
    """Gradients into their places."""

    grads: Params

    def given(self, name: str, grad: Tensor) -> None:
        self.grads[name].copy_(grad)

    def product(self, name: str, left: Tensor, right: Tensor) -> None:
        self.grads[name].baddbmm_(left, right, beta=0)


@dataclass(frozen=True)
class Moves:
    """Parameters down their gradients."""

    params: Params
    lr: float

    def given(self, name: str, grad: Tensor) -> None:
        self.params[name].sub_(grad, alpha=self.lr)

    def product(self, name: str, left: Tensor, right: Tensor) -> None:
        self.params[name].baddbmm_(left, right, alpha=-self.lr)


class Layer(Protocol):
    """On tensors [c, B, ...]."""

    def forward(self, params: Params, value: Tensor) -> tuple[Tensor, Any]:
        """The output, and what the way back needs."""

    def backward(self, params: Params, kept: Any, slope: Tensor, take: Take, first: bool) -> Tensor | None:
        """The slope at the input from that at the output; none for the `first` layer that has parameters."""


@dataclass(frozen=True)
class Flatten:
    def forward(self, params: Params, value: Tensor) -> tuple[Tensor, torch.Size]:
        return value.flatten(2), value.shape

    def backward(self, params: Params, kept: torch.Size, slope: Tensor, take: Take, first: bool) -> Tensor:
        return slope.reshape(kept)


@dataclass(frozen=True)
class Unflatten:
    dim: int  # of [c, B, ...]
    sizes: torch.Size

    def forward(self, params: Params, value: Tensor) -> tuple[Tensor, torch.Size]:
        return value.unflatten(self.dim, self.sizes), value.shape

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
class Drop:
    """In place, too: where a mask is 0 there is no slope, whatever a ReLU before it then says of its output."""

    mask: str

    def forward(self, params: Params, value: Tensor) -> tuple[Tensor, Tensor | None]:
        mask = params.get(self.mask)
        if mask is None:
            return value, None
        if mask.shape == value.shape and mask.stride() != value.stride():  # twice a product of two layouts is dearer
            mask = torch.empty_like(value).copy_(mask)
        return value.mul_(mask), mask

    def backward(self, params: Params, kept: Tensor | None, slope: Tensor, take: Take, first: bool) -> Tensor:
        return slope if kept is None else slope * kept


@dataclass(frozen=True)
class Pool:
    """The largest of each square."""

    shape: tuple[Any, ...]  # kernel, stride, padding, dilation, whether to round up

    def forward(self, params: Params, value: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        value, rows = _beside(value), len(value)
        made, where = aten.max_pool2d_with_indices(value, *self.shape)
        return _apart(made, rows), (value, where)

    def backward(self, params: Params, kept: tuple[Tensor, Tensor], slope: Tensor, take: Take, first: bool) -> Tensor:
        value, where = kept
        made = aten.max_pool2d_with_indices_backward(_beside(slope), value, *self.shape, where)
        return _apart(made, len(slope))


@dataclass(frozen=True)
class Linear:
    weight: str
    bias: str | None

    def forward(self, params: Params, value: Tensor) -> tuple[Tensor, Tensor]:
        if len(value) == 1:  # products of matrices are quicker than of one-row batches
            bias = params[self.bias][0] if self.bias else None
            return nn.functional.linear(value[0], params[self.weight][0], bias).unsqueeze(0), value
        weight = params[self.weight].mT
        if self.bias is None:
            return torch.bmm(value, weight), value
        return torch.baddbmm(params[self.bias].unsqueeze(1), value, weight), value

    def backward(self, params: Params, kept: Tensor, slope: Tensor, take: Take, first: bool) -> Tensor | None:
        below = None if first else torch.bmm(slope, params[self.weight])  # before the weights may change
        take.product(self.weight, slope.mT, kept)
        if self.bias:
            take.given(self.bias, slope.sum(1))
        return below


@dataclass(frozen=True)
class Conv:
    weight: str
    bias: str | None
    shape: tuple[Any, ...]  # stride, padding, dilation, transposed, output padding
    groups: int

    def forward(self, params: Params, value: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        value, rows = pixels_last(_beside(value)), len(value)
        weight = params[self.weight].flatten(0, 1)
        bias = params[self.bias].flatten() if self.bias else None
        made = aten.convolution(value, weight, bias, *self.shape, rows * self.groups)
        return _apart(made, rows), (value, weight)

    def backward(
        self, params: Params, kept: tuple[Tensor, Tensor], slope: Tensor, take: Take, first: bool
    ) -> Tensor | None:
        rows, (value, weight), wanted = len(slope), kept, [not first, True, self.bias is not None]
        sizes = [len(weight)] if self.bias else None
        asked = (_beside(slope), value, weight, sizes, *self.shape, rows * self.groups, wanted)
        below, change, shift = aten.convolution_backward(*asked)
        take.given(self.weight, change.unflatten(0, (rows, -1)))
        if self.bias:
            take.given(self.bias, shift.unflatten(0, (rows, -1)))
        return None if first else _apart(below, rows)


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
            if layer is None or not _follows(layer, layers):
                return None
            layers.append(layer)
        known = [name for layer in layers if isinstance(layer, Conv | Linear) for name in (layer.weight, layer.bias)]
        if not any(isinstance(layer, Conv) for layer in layers) or not isinstance(layers[-1], Linear):
            return None
        if sorted(filter(None, known)) != sorted(layout.names):  # shared or foreign parameters
            return None
        begins = next(at for at, layer in enumerate(layers) if isinstance(layer, Conv | Linear))
        return cls(tuple(layers), begins, layout, objective)

    @property
    def narrow(self) -> bool:
        """Whether one client's channels leave much of a processor's registers empty, which several clients' fill."""
        known = dict(zip(self.layout.names, self.layout.shapes, strict=True))
        return min(known[layer.weight][0] for layer in self.layers if isinstance(layer, Conv)) < REGISTER

    def __call__(
        self,
        theta: Tensor,
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor | None,
        masks: Mapping[str, Tensor],
        grad: Tensor,
    ) -> Tensor:
        """The losses [c] at theta [c, P] of batches [c, B, ...]; their gradients go into grad [c, P]."""
        into = self.layout.views(grad)
        params = {**self.layout.views(theta), **masks}
        return self._through(params, inputs, targets, weights, Writes(into))

    def lower(
        self,
        theta: Tensor,
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor | None,
        masks: Mapping[str, Tensor],
        lr: float,
    ) -> Tensor:
        """The losses [c] at theta [c, P], which goes down by lr times their gradients, in place."""
        params = {**self.layout.views(theta), **masks}
        return self._through(params, inputs, targets, weights, Moves(params, lr))

    def pull(self, theta: Tensor, inputs: Tensor, slope: Callable[[Tensor], Tensor]) -> Tensor:
        """Gradient [c, P] of a number that is made of the outputs [c, B, width], whose gradient there is `slope`."""
        parts = self._parts(inputs)
        if parts == 1:
            return self._pull(theta, inputs, slope)

        def of_parts(outputs: Tensor) -> Tensor:
            return slope(outputs.flatten(0, 1).unsqueeze(0)).view_as(outputs)

        apart = inputs.unflatten(1, (parts, -1)).squeeze(0)
        return self._pull(theta.expand(parts, -1), apart, of_parts).sum(0, keepdim=True)

    def _parts(self, inputs: Tensor) -> int:
        """Of a narrow stack's only batch: as many as go side by side, as several clients' would."""
        if len(inputs) > 1 or not inputs.is_cpu or not self.narrow:
            return 1
        return next((parts for parts in range(SIDE, 1, -1) if inputs.shape[1] % parts == 0), 1)

    def _pull(self, theta: Tensor, inputs: Tensor, slope: Callable[[Tensor], Tensor]) -> Tensor:
        grad = torch.empty_like(theta, memory_format=torch.contiguous_format)
        params, take = self.layout.views(theta), Writes(self.layout.views(grad))
        with torch.no_grad():
            value, kept = self._forward(params, inputs)
            self._backward(params, kept, slope(value), take)
        return grad

    @torch.no_grad()
    def _through(self, params: Params, inputs: Tensor, targets: Tensor, weights: Tensor | None, take: Take) -> Tensor:
        value, kept = self._forward(params, inputs)
        with torch.enable_grad():
            loss, slope = losses(self.objective, value, targets, weights)
        self._backward(params, kept, slope, take)
        return loss

    def _forward(self, params: Params, value: Tensor) -> tuple[Tensor, list[Any]]:
        kept = []
        for layer in self.layers:
            value, needed = layer.forward(params, value)
            kept.append(needed)
        return value, kept

    def _backward(self, params: Params, kept: list[Any], slope: Tensor | None, take: Take) -> None:
        for at in range(len(self.layers) - 1, self.begins - 1, -1):
            assert slope is not None  # only the last of these layers has none below
            slope = self.layers[at].backward(params, kept[at], slope, take, at == self.begins)


def _beside(images: Tensor) -> Tensor:
    """[c, B, channels, ...] as [B, c·channels, ...]."""
    return images.transpose(0, 1).flatten(1, 2)


def _apart(images: Tensor, rows: int) -> Tensor:
    """The other way round, as a view."""
    return images.unflatten(1, (rows, -1)).transpose(0, 1)


def pixels_last(images: Tensor) -> Tensor:
    """Images with their channels side by side, in which a processor's convolutions and pools are quickest."""
    if not images.is_cpu or images.dim() != 4:
        return images
    last = images.contiguous(memory_format=torch.channels_last)
    _, channels, height, width = last.shape  # with one channel torch takes any layout for this one
    return last.as_strided(last.shape, (channels * height * width, 1, channels * width, channels))


def _follows(layer: Layer, layers: Sequence[Layer]) -> bool:
    """Whether a layer may come after others; ReLUs and dropout change what they are given, which no input may be."""
    if isinstance(layer, ReLU):
        return bool(layers) and isinstance(layers[-1], Conv | Pool | Linear | Drop)
    if isinstance(layer, Drop):
        return any(isinstance(one, Conv | Linear) for one in layers)
    flat = any(isinstance(one, Flatten) for one in layers)
    return flat == isinstance(layer, Linear)


def _layer(name: str, module: nn.Module) -> Layer | None:
    """The layer that a module is; None for one that is not known here."""
    frozen = not all(parameter.requires_grad for parameter in module.parameters())
    if frozen:
        return None
    if type(module) is nn.Unflatten and isinstance(module.dim, int) and isinstance(module.unflattened_size[0], int):
        return Unflatten(module.dim + (module.dim > 0), torch.Size(module.unflattened_size))
    if type(module) is nn.Flatten and (module.start_dim, module.end_dim) == (1, -1):
        return Flatten()
    if type(module) is nn.ReLU:
        return ReLU()
    if type(module) is Masked or type(module) in TOGETHER:
        return Drop(f"{name}mask")
    if type(module) is nn.MaxPool2d and not module.return_indices:
        sizes = [_pair(size) for size in (module.kernel_size, module.stride, module.padding, module.dilation)]
        return Pool((*sizes, module.ceil_mode))
    if type(module) is nn.Linear:
        return Linear(f"{name}weight", f"{name}bias" if module.bias is not None else None)
    if type(module) is nn.Conv2d and module.padding_mode == "zeros" and not isinstance(module.padding, str):
        shape = (module.stride, module.padding, module.dilation, False, [0, 0])
        return Conv(f"{name}weight", f"{name}bias" if module.bias is not None else None, shape, module.groups)
    return None


def _pair(size: Any) -> list[int]:
    return [size, size] if isinstance(size, int) else list(size)
