"""The CNN of Acar et al. (2021), from FedDyn: 797,962 parameters for 3 x 32 x 32, ten classes.

conv 5x5 (64) - pool - conv 5x5 (64) - pool - 384 - 192 - classes, with ReLU
"""

from torch import nn

from fedddp.core import model
from fedddp.models._image import two_convolutions


class Model(model.Model):
    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        return two_convolutions(shape, (64, 64), [384, 192], outputs)
