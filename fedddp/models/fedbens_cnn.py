"""The larger CNN of "FedBEns" for SVHN and CIFAR-10, without biases: 939,616 parameters for 3 x 32 x 32, ten classes.

conv 5x5 (32) - pool - conv 5x5 (64) - pool - 512 - 128 - classes, with ReLU
"""

from torch import nn

from fedddp.core import model
from fedddp.models._image import check_pool, two_convolutions


class Model(model.Model):
    bias: bool = False  # whether layers add a bias
    pool: int = 1  # side of the squares of pixels that images are averaged over first, at least 1

    def __post_init__(self) -> None:
        check_pool(self.pool)

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        return two_convolutions(shape, (32, 64), [512, 128], outputs, self.bias, self.pool)
