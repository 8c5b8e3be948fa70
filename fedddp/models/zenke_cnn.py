"""The CNN of Zenke et al. (2017), with dropout: 1,250,858 parameters for 3 x 32 x 32, ten classes.

two of: conv 3x3 padded - conv 3x3 - pool - dropout ¼ (with 32, then 64 channels) - 512 - dropout ½ - classes, with ReLU
"""

from torch import nn

from fedddp.core import model
from fedddp.models._image import channels, classifier, conv


class Model(model.Model):
    dropout: bool = True  # whether a quarter and a half of the units are dropped while training

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        layers, depth = channels(shape)
        for inputs, width in ((depth, 32), (32, 64)):
            layers += conv(inputs, width, 3, padding=1, pool=False) + conv(width, width, 3)
            layers += [nn.Dropout(0.25)] if self.dropout else []
        return classifier(layers, shape, [512], outputs, dropout=0.5 if self.dropout else 0.0)
