"""Logistic (or linear) regression: one linear layer on the flattened input; with several labels, one for each."""

from math import prod

from torch import nn

from fedddp.core import model
from fedddp.core.check import check, check_count


class Model(model.Model):
    bias: bool = True  # whether the layer adds a bias
    pool: int = 1  # side of the squares of pixels that images are averaged over first: a Hessian needs few parameters

    def __post_init__(self) -> None:
        check_count("model.pool", self.pool, most=10_000)

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        if self.pool == 1:
            return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), outputs, bias=self.bias))
        check("model.pool", self.pool, len(shape) >= 2 and min(shape[-2:]) >= self.pool, f"1 for inputs {shape}")
        image = (prod(shape[:-2]), *shape[-2:])
        inputs = image[0] * (image[1] // self.pool) * (image[2] // self.pool)
        return nn.Sequential(
            nn.Flatten(),
            nn.Unflatten(1, image),
            nn.AvgPool2d(self.pool),
            nn.Flatten(),
            nn.Linear(inputs, outputs, bias=self.bias),
        )
