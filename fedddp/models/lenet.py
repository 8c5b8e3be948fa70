"""LeNet without biases, as FedFisher and "FedBEns" use it: 44,190 parameters for images of 28 x 28, ten classes.

conv 5x5 (6) - pool - conv 5x5 (16) - pool - 120 - 84 - classes, with ReLU
"""

from dataclasses import dataclass

from torch import nn

from fedddp.models._image import channels, classifier, conv


@dataclass
class Model:
    bias: bool = False

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        layers, depth = channels(shape)
        layers += conv(depth, 6, 5, bias=self.bias) + conv(6, 16, 5, bias=self.bias)
        return classifier(layers, shape, [120, 84], classes, self.bias)
