"""A small convolutional network with GroupNorm, for images of any size."""

from dataclasses import dataclass, field
from itertools import pairwise

from torch import nn

from fedddp.models._image import channels


@dataclass
class Model:
    channels: list[int] = field(default_factory=lambda: [16, 32])
    groups: int = 4

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        layers, depth = channels(shape)
        for inputs, outputs in pairwise([depth, *self.channels]):
            layers += [
                nn.Conv2d(inputs, outputs, 3, stride=2, padding=1),
                nn.GroupNorm(self.groups, outputs),
                nn.ReLU(),
            ]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(self.channels[-1], classes))
