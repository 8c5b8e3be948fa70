"""A small convolutional network with GroupNorm, for images of any size."""

from dataclasses import dataclass, field
from itertools import pairwise

from torch import nn


@dataclass
class Model:
    channels: list[int] = field(default_factory=lambda: [16, 32])
    groups: int = 4

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        depth = shape[0] if len(shape) == 3 else 1
        layers: list[nn.Module] = [nn.Unflatten(1, (1, shape[0]))] if len(shape) == 2 else []
        for inputs, outputs in pairwise([depth, *self.channels]):
            layers += [
                nn.Conv2d(inputs, outputs, 3, stride=2, padding=1),
                nn.GroupNorm(self.groups, outputs),
                nn.ReLU(),
            ]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(self.channels[-1], classes))
