"""The CNN of "Hessian-weighted aggregation" (HWA) for CIFAR-10: three convolutions, two dense layers.

conv 3x3 (32, 64, 128), each padded and pooled - hidden - classes, with ReLU

The paper gives kernels, channels and the number of layers; padding, pooling and the width of the hidden layer
are choices made here: 356,810 parameters for 3 x 32 x 32, ten classes.
"""

from itertools import pairwise

from torch import nn

from fedddp.core import model
from fedddp.core.check import check_count
from fedddp.models._image import channels, check_pool, classifier, conv


class Model(model.Model):
    hidden: int = 128  # units of the hidden layer, at least 1
    pool: int = 1  # side of the squares of pixels that images are averaged over first, at least 1

    def __post_init__(self) -> None:
        check_count("model.hidden", self.hidden)
        check_pool(self.pool)

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        layers, depth = channels(shape, self.pool)
        for inputs, width in pairwise([depth, 32, 64, 128]):
            layers += conv(inputs, width, 3, padding=1)
        return classifier(layers, shape, [self.hidden], outputs)
