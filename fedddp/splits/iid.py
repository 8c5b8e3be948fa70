"""Even and random: every client a uniform sample, sizes equal to within one."""

import torch
from torch import Tensor

from fedddp.core.data import Examples
from fedddp.splits._dealing import Counted


class Split(Counted):
    def deal(self, examples: Examples, generator: torch.Generator) -> list[Tensor]:
        order = torch.randperm(len(examples), generator=generator)
        return list(order.tensor_split(self.clients))
