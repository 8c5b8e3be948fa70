"""A network as a chain of layers whose hidden neurons have no names: permuting them changes nothing.

Neurons of a linear layer are its outputs, of a convolution its output channels. What belongs to a neuron is its row
of the weight, its bias and its entries in a normalisation layer behind; the next layer's columns follow its place.
GroupNorm ties the channels of a group together, so neurons then stay within their group.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from fedddp.core.rng import stream
from fedddp.core.task import Task
from fedddp.methods._layers import outputs

_REFUSED = "method.name=ot_fusion: this model's"


class Layer(NamedTuple):
    """One layer's parameter names, and the groups that its neurons must not leave."""

    weight: str
    vectors: list[str]  # one number per neuron each
    neurons: int
    groups: int


def chain(task: Task) -> list[Layer]:
    """The layers in the order they are registered; an error for a network that is no chain."""
    layers: list[Layer] = []
    for name, module in task.module.named_modules():
        prefix = f"{name}." if name else ""
        own = [f"{prefix}{n}" for n, _ in module.named_parameters(recurse=False) if f"{prefix}{n}" in task.layout.names]
        if isinstance(module, nn.Linear | nn.modules.conv._ConvNd):
            layers.append(Layer(f"{prefix}weight", own[1:], len(module.weight), 1))
        elif own:
            _follow(layers, own, module, task)
        elif isinstance(module, nn.GroupNorm) and layers:
            layers[-1] = layers[-1]._replace(groups=module.num_groups)
    if not layers or not _permutable(task, layers):
        raise ValueError(f"{_REFUSED} neurons cannot be permuted: layers must form a chain, without skip connections")
    return layers


def _follow(layers: list[Layer], own: list[str], module: nn.Module, task: Task) -> None:
    """Normalisation behind a layer belongs to that layer's neurons."""
    views = task.layout.views(task.initial)
    if not layers or any(views[name].shape != (layers[-1].neurons,) for name in own):
        raise ValueError(
            f"{_REFUSED} {own[0]!r} belongs to a {type(module).__name__}, whose neurons cannot be aligned: "
            "linear layers, convolutions and normalisation can"
        )
    groups = module.num_groups if isinstance(module, nn.GroupNorm) else 1
    layers[-1] = layers[-1]._replace(vectors=[*layers[-1].vectors, *own], groups=groups)


def permute(task: Task, layers: list[Layer], theta: Tensor, orders: Sequence[Tensor]) -> Tensor:
    """theta [P] with neuron i of layer l taken from place orders[l][i]."""
    permuted = theta.clone()
    views, before = task.layout.views(permuted), None
    for layer, order in zip(layers, orders, strict=True):
        weight = columns(views[layer.weight], before)
        views[layer.weight].copy_(weight[order].view_as(views[layer.weight]))
        for name in layer.vectors:
            views[name].copy_(views[name][order])
        before = order
    return permuted


def columns(weight: Tensor, order: Tensor | None) -> Tensor:
    """A weight as [neurons, inputs], the inputs put in the order of the layer before.

    Flattened channels and kernels both have the channel first, so that each of the layer before's neurons owns a run.
    """
    if order is None:
        return weight.flatten(1)
    return weight.reshape(len(weight), len(order), -1)[:, order].flatten(1)


def _permutable(task: Task, layers: list[Layer]) -> bool:
    """Whether the network's function survives a random permutation, seen on random inputs."""
    generator = stream("permutation")
    inputs = torch.randn(4, *task.data.input_shape, generator=generator).to(task.device, task.dtype)
    orders = [_shuffled(layer, generator) for layer in layers[:-1]]
    try:
        other = permute(task, layers, task.initial, [*orders, torch.arange(layers[-1].neurons)])
    except RuntimeError:  # a layer's inputs are not the neurons of the layer before
        return False
    with torch.no_grad():
        one, two = outputs(task, task.initial, inputs), outputs(task, other, inputs)
    return bool((one - two).abs().max() <= 1e-3 * one.abs().max())


def _shuffled(layer: Layer, generator: torch.Generator) -> Tensor:
    groups = torch.arange(layer.neurons).view(layer.groups, -1)
    return torch.cat([group[torch.randperm(len(group), generator=generator)] for group in groups])
