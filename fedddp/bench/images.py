"""Images of noise, of any shape: what a model costs does not depend on what they show."""

import torch

from fedddp.core import data
from fedddp.core.data import Dataset, Examples
from fedddp.core.rng import stream


class Source(data.Source):
    channels: int = 1
    size: int = 28  # pixels a side
    examples: int = 64
    classes: int = 10

    def load(self) -> Dataset:
        return Dataset(self._noise("train"), self._noise("test"), classes=self.classes, scale=1 / 255)

    def _noise(self, part: str) -> Examples:
        shape = (self.examples, self.channels, self.size, self.size)
        inputs = torch.randint(256, shape, generator=stream("noise", part), dtype=torch.uint8)
        return Examples(inputs, torch.arange(self.examples) % self.classes)
