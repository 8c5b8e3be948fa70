"""LEAF's CNN for FEMNIST (Caldas et al. 2018): 6,603,710 parameters for images of 28 x 28, 62 classes.

conv 5x5 (32) - pool - conv 5x5 (64) - pool, both padded - 2048 - classes, with ReLU
"""

from torch import nn

from fedddp.core import model
from fedddp.core.check import check_count
from fedddp.models._image import channels, classifier, conv


class Model(model.Model):
    hidden: int = 2048  # units of the hidden layer, at least 1

    def __post_init__(self) -> None:
        check_count("model.hidden", self.hidden)

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        layers, depth = channels(shape)
        layers += conv(depth, 32, 5, padding=2) + conv(32, 64, 5, padding=2)
        return classifier(layers, shape, [self.hidden], outputs)
