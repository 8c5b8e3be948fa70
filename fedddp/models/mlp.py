"""A multi-layer perceptron on the flattened input."""

from dataclasses import dataclass, field
from itertools import pairwise
from math import prod

from torch import nn

from fedddp.local import check

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "sigmoid": nn.Sigmoid, "tanh": nn.Tanh}


@dataclass
class Model:
    hidden: list[int] = field(default_factory=lambda: [200, 100])
    activation: str = "relu"

    def __post_init__(self) -> None:
        check("model.activation", self.activation, self.activation in ACTIVATIONS, " or ".join(ACTIVATIONS))

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        layers: list[nn.Module] = [nn.Flatten()]
        for inputs, outputs in pairwise([prod(shape), *self.hidden]):
            layers += [nn.Linear(inputs, outputs), ACTIVATIONS[self.activation]()]
        return nn.Sequential(*layers, nn.Linear(([prod(shape), *self.hidden])[-1], classes))
