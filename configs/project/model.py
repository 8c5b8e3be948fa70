"""A network. Its annotated fields are settings: `model.hidden=64`."""

from math import prod

from torch import nn

import fedddp


class Net(fedddp.Model):
    hidden: int = 32  # units of the hidden layer, at least 1

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """`shape` is that of one input, `outputs` the number of classes."""
        return nn.Sequential(
            nn.Flatten(), nn.Linear(prod(shape), self.hidden), nn.ReLU(), nn.Linear(self.hidden, outputs)
        )
