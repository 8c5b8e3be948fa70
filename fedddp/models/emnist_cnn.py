"""The EMNIST CNN of Reddi et al. (2021), used by FedPA, with dropout: 1,206,590 parameters for 28 x 28, 62 classes.

conv 3x3 (32) - conv 3x3 (64) - pool - dropout ¼ - 128 - dropout ½ - classes, with ReLU
"""

from torch import nn

from fedddp.core import model
from fedddp.models._image import channels, classifier, conv


class Model(model.Model):
    dropout: bool = True  # whether a quarter and a half of the units are dropped while training

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        layers, depth = channels(shape)
        layers += conv(depth, 32, 3, pool=False) + conv(32, 64, 3)
        layers += [nn.Dropout(0.25)] if self.dropout else []
        return classifier(layers, shape, [128], outputs, dropout=0.5 if self.dropout else 0.0)
