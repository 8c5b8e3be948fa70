"""Even and random: every client a uniform sample, sizes equal to within one."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedddp.data import Examples
from fedddp.splits._dealing import Settings


@dataclass
class Split(Settings):
    def deal(self, examples: Examples, generator: torch.Generator) -> list[Tensor]:
        order = torch.randperm(len(examples), generator=generator)
        return list(order.tensor_split(self.clients))
