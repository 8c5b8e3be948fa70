"""The larger CNN of "FedBEns" for SVHN and CIFAR-10, without biases: 939,616 parameters for 3 x 32 x 32, ten classes.

conv 5x5 (32) - pool - conv 5x5 (64) - pool - 512 - 128 - classes, with ReLU
"""

from dataclasses import dataclass

from torch import nn

from fedddp.models._image import channels, classifier, conv


@dataclass
class Model:
    bias: bool = False

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        layers, depth = channels(shape)
        layers += conv(depth, 32, 5, bias=self.bias) + conv(32, 64, 5, bias=self.bias)
        return classifier(layers, shape, [512, 128], classes, self.bias)
