"""Logistic (or linear) regression: one linear layer on the flattened input; with several labels, one for each."""

from dataclasses import dataclass
from math import prod

from torch import nn


@dataclass
class Model:
    bias: bool = True

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), classes, bias=self.bias))
