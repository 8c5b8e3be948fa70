"""LeNet without biases, as FedFisher and "FedBEns" use it: 44,190 parameters for images of 28 x 28, ten classes.

conv 5x5 (6) - pool - conv 5x5 (16) - pool - 120 - 84 - classes, with ReLU
"""

from torch import nn

from fedddp.core import model
from fedddp.models._image import two_convolutions


class Model(model.Model):
    bias: bool = False  # whether layers add a bias

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        return two_convolutions(shape, (6, 16), [120, 84], outputs, self.bias)
