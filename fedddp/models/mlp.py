"""A multi-layer perceptron on the flattened input."""

from dataclasses import field
from itertools import pairwise
from math import prod

from torch import nn

from fedddp.core import model
from fedddp.core.check import check, check_count

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh}


class Model(model.Model):
    hidden: list[int] = field(default_factory=lambda: [200, 100])  # units of each hidden layer
    activation: str = "relu"  # between the layers: relu, sigmoid or tanh

    def __post_init__(self) -> None:
        for width in self.hidden:
            check_count("model.hidden", width)
        check("model.activation", self.activation, self.activation in ACTIVATIONS, " or ".join(ACTIVATIONS))

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        widths = [prod(shape), *self.hidden]
        for inputs, width in pairwise(widths):
            layers += [nn.Linear(inputs, width), ACTIVATIONS[self.activation]()]
        return nn.Sequential(*layers, nn.Linear(widths[-1], outputs))
