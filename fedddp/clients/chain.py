"""Chains of linear layers and activations, batched over clients by hand.

vmap pays for its generality: at 178k parameters its forward and backward take twice the time of the matrix products
alone. For the commonest models the products are written out here, forward and backward, on strided views of the
flat parameters and gradients, so nothing is packed or copied. A step of plain gradient descent is taken by the products
themselves, W <- W - lr · slopeᵀ·value, so that no gradient is ever written.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedddp.core import kernels
from fedddp.core.objective import CrossEntropy, Objective
from fedddp.core.params import Layout

aten = torch.ops.aten
Take = Callable[["Layer", Tensor, Tensor], None]  # (layer, slope at its outputs, its inputs): what becomes of them
# activation -> (forward, gradient from the gradient and value of its output)
ACTIVATIONS: dict[type[nn.Module], tuple[Callable[[Tensor], Tensor], Callable[[Tensor, Tensor], Tensor]]] = {
    nn.ReLU: (torch.relu_, lambda grad, value: aten.threshold_backward(grad, value, 0)),
    nn.Sigmoid: (torch.sigmoid_, aten.sigmoid_backward),
    nn.Tanh: (torch.tanh_, aten.tanh_backward),
}


@dataclass(frozen=True)
class Layer:
    weight: str
    bias: str | None
    activation: type[nn.Module] | None


@dataclass(frozen=True)
class Chain:
    """A module that is nothing but flatten, linear layers and activations."""

    layers: tuple[Layer, ...]
    layout: Layout
    objective: Objective
    flattens: bool  # otherwise an input is one vector already

    @classmethod
    def of(cls, module: nn.Module, layout: Layout, objective: Objective) -> "Chain | None":
        """The chain that the module is; None for any other module."""
        layers: list[Layer] = []
        flattens = False
        for name, child in leaves(module):
            if type(child) is nn.Linear and all(p.requires_grad for p in child.parameters()):
                layers.append(Layer(f"{name}weight", f"{name}bias" if child.bias is not None else None, None))
            elif type(child) in ACTIVATIONS and layers and layers[-1].activation is None:
                layers[-1] = Layer(layers[-1].weight, layers[-1].bias, type(child))
            elif type(child) is nn.Flatten and child.start_dim == 1 and child.end_dim == -1 and not layers:
                flattens = True
            else:
                return None
        known = {name for layer in layers for name in (layer.weight, layer.bias) if name}
        whole = bool(layers) and layers[-1].activation is None and known == set(layout.names)
        return cls(tuple(layers), layout, objective, flattens) if whole else None

    def takes(self, inputs: Tensor) -> bool:
        """Whether inputs [c, B, ...] are what the chain is written for."""
        return self.flattens or inputs.dim() == 3

    def __call__(self, theta: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor | None, grad: Tensor) -> Tensor:
        """losses [c]; the gradients go into grad [c, P]."""
        return self._through(self.layout.views(theta), inputs, targets, weights, _writes(self.layout.views(grad)))

    def lower(self, theta: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor | None, lr: float) -> Tensor:
        """losses [c] at theta [c, P], which goes down by lr times their gradients, in place."""
        params = self.layout.views(theta)
        return self._through(params, inputs, targets, weights, _moves(params, lr))

    def _through(
        self, params: dict[str, Tensor], inputs: Tensor, targets: Tensor, weights: Tensor | None, take: Take
    ) -> Tensor:
        with torch.no_grad():
            values = self._forward(params, inputs.flatten(2))
        loss, slope = losses(self.objective, values[-1], targets, weights)
        with torch.no_grad():
            self._backward(params, values, slope, take)
        return loss

    def clipped(
        self,
        theta: Tensor,
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor | None,
        clip: float,
        factor: Tensor | float,
        grad: Tensor | None,
    ) -> Tensor:
        """Mean losses [c]; factor Σ_i g_i min(1, clip/|g_i|) over each client's examples goes into grad [c, P].

        Without `grad`, theta goes down by it. The gradient of one example's weights is the outer product of a layer's
        input and slope, whose norm is the product of theirs; so no gradient of one example is ever made (ghost
        clipping: Li et al. 2022).
        """
        params = self.layout.views(theta)
        take = _moves(params, 1.0) if grad is None else _writes(self.layout.views(grad))
        with torch.no_grad():
            values = self._forward(params, inputs.flatten(2))
        losses, slope = _each(self.objective, values[-1], targets)
        with torch.no_grad():
            slopes = self._slopes(params, values, slope)
            squares = torch.zeros_like(losses)
            for layer, value, own in zip(self.layers, values, slopes, strict=False):
                squares.addcmul_(_squares(value) + (layer.bias is not None), _squares(own))
            share = shorten(squares, clip) * factor
            if weights is not None:
                share, losses = share * weights, losses * weights
            for layer, value, own in zip(self.layers, values, slopes, strict=False):
                take(layer, own.mul_(share.unsqueeze(2)), value)
        return losses.sum(1) / (targets.shape[1] if weights is None else weights.sum(1).clamp_min(1))

    def _slopes(self, params: dict[str, Tensor], values: list[Tensor], slope: Tensor) -> list[Tensor]:
        """The loss's gradient before every layer's activation, [c, B, width] each."""
        found = []
        for number in reversed(range(len(self.layers))):
            layer = self.layers[number]
            if layer.activation is not None:
                slope = ACTIVATIONS[layer.activation][1](slope, values[number + 1])
            found.append(slope)
            if number:
                slope = torch.bmm(slope, params[layer.weight])
        return found[::-1]

    def pull(self, theta: Tensor, inputs: Tensor, slope: Callable[[Tensor], Tensor]) -> Tensor:
        """Gradient [c, P] of a number that is made of the outputs [c, B, width], whose gradient there is `slope`."""
        grad = torch.empty_like(theta)
        params, take = self.layout.views(theta), _writes(self.layout.views(grad))
        with torch.no_grad():
            values = self._forward(params, inputs.flatten(2))
            self._backward(params, values, slope(values[-1]), take)
        return grad

    def _forward(self, params: dict[str, Tensor], value: Tensor) -> list[Tensor]:
        """The input and every layer's output, [c, B, width] each."""
        values = [value]
        for layer in self.layers:
            weight = params[layer.weight].mT
            if layer.bias is None:
                value = torch.bmm(value, weight)
            else:
                value = torch.baddbmm(params[layer.bias].unsqueeze(1), value, weight)
            if layer.activation is not None:
                value = ACTIVATIONS[layer.activation][0](value)
            values.append(value)
        return values

    def _backward(self, params: dict[str, Tensor], values: list[Tensor], slope: Tensor, take: Take) -> None:
        for number in reversed(range(len(self.layers))):
            layer, value = self.layers[number], values[number]
            if layer.activation is not None:
                slope = ACTIVATIONS[layer.activation][1](slope, values[number + 1])
            below = torch.bmm(slope, params[layer.weight]) if number else slope  # before the weights may change
            take(layer, slope, value)
            slope = below


def _writes(grads: dict[str, Tensor]) -> Take:
    """Gradients into their places."""

    def take(layer: Layer, slope: Tensor, value: Tensor) -> None:
        grads[layer.weight].baddbmm_(slope.mT, value, beta=0)
        if layer.bias is not None:
            torch.sum(slope, dim=1, out=grads[layer.bias])

    return take


def _moves(params: dict[str, Tensor], lr: float) -> Take:
    """Parameters down their gradients."""

    def take(layer: Layer, slope: Tensor, value: Tensor) -> None:
        params[layer.weight].baddbmm_(slope.mT, value, alpha=-lr)
        if layer.bias is not None:
            params[layer.bias].sub_(slope.sum(1), alpha=lr)

    return take


def shorten(squares: Tensor, clip: float) -> Tensor:
    """What gradients with these squared norms are multiplied with, so that none is longer than `clip`."""
    return (clip * squares.clamp_min(torch.finfo(squares.dtype).tiny).rsqrt()).clamp_max(1.0)


def _squares(rows: Tensor) -> Tensor:
    """[c, B] squared norms."""
    return torch.linalg.vector_norm(rows, dim=2).square_()


def losses(objective: Objective, outputs: Tensor, targets: Tensor, weights: Tensor | None) -> tuple[Tensor, Tensor]:
    """The mean loss [c] of each client's outputs [c, B, ...], and its gradient with respect to them."""
    share = 1 / targets.shape[1] if weights is None else weights / weights.sum(1, keepdim=True)
    if type(objective) is CrossEntropy and not outputs.is_cpu and kernels.suit((outputs,)):
        return _fused(outputs, targets, share)
    each, slope = _each(objective, outputs, targets)
    by = share.unsqueeze(2) if isinstance(share, Tensor) else share
    return each.mul_(share).sum(1), slope.mul_(by)


def _each(objective: Objective, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Of each example [c, B], and their gradients at its outputs."""
    if type(objective) is CrossEntropy:
        return _cross_entropy(outputs, targets)
    leaf = outputs.detach().requires_grad_()
    found = objective.loss(leaf.flatten(0, 1), targets.flatten(0, 1)).view(targets.shape[:2])
    (slope,) = torch.autograd.grad(found.sum(), leaf)
    return found.detach(), slope


def _fused(outputs: Tensor, targets: Tensor, share: Tensor | float) -> tuple[Tensor, Tensor]:
    """In one launch, on a device that has the kernel."""
    losses, slope = outputs.new_empty(targets.shape), torch.empty_like(outputs)
    kernels.call("cross_entropy", targets.numel(), outputs.shape[2], outputs, targets, share, losses, slope)
    return losses.sum(1), slope


def _cross_entropy(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """-log p of the target [c, B], and its gradient p - onehot [c, B, classes]: a third of autograd's time."""
    index = targets.unsqueeze(2)
    logs = outputs.log_softmax(2)
    losses = logs.gather(2, index).squeeze(2).neg_()
    slope = logs.exp_()
    return losses, slope.scatter_(2, index, -1.0, reduce="add")


def leaves(module: nn.Module, prefix: str = "") -> list[tuple[str, nn.Module]]:
    """The modules of nested nn.Sequentials in order, each as often as it is called, with its parameters' prefix.

    A class of one's own that derives from nn.Sequential and calls its modules in the same way is one, too.
    """
    if type(module).forward is not nn.Sequential.forward:
        return [(prefix, module)]
    return [
        leaf
        for name, child in module._modules.items()
        if child is not None
        for leaf in leaves(child, f"{prefix}{name}.")
    ]
