"""A small convolutional network with GroupNorm, for images of any size."""

from dataclasses import field
from itertools import pairwise

from torch import nn

from fedddp.core import model
from fedddp.core.check import check, check_count
from fedddp.models._image import channels


class Model(model.Model):
    channels: list[int] = field(default_factory=lambda: [16, 32])  # channels of each convolution, at least one
    groups: int = 4  # groups of each GroupNorm, a divisor of every one of channels

    def __post_init__(self) -> None:
        check("model.channels", self.channels, len(self.channels) > 0, "a list of at least one")
        for width in self.channels:
            check_count("model.channels", width)
        fine = self.groups >= 1 and all(width % self.groups == 0 for width in self.channels)
        check("model.groups", self.groups, fine, f"a divisor of each of model.channels={self.channels}")

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        layers, depth = channels(shape)
        for inputs, width in pairwise([depth, *self.channels]):
            layers += [
                nn.Conv2d(inputs, width, 3, stride=2, padding=1),
                nn.GroupNorm(self.groups, width),
                nn.ReLU(),
            ]
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(self.channels[-1], outputs))
