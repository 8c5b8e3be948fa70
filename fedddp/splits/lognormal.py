"""Log-normal sizes: client sizes ~ exp(sigma · normal), each client a uniform sample; every point once."""

import torch
from torch import Tensor

from fedddp.core.check import check
from fedddp.core.data import Examples
from fedddp.splits._dealing import Counted, counts_of, fill_up


class Split(Counted):
    sigma: float = 1.0  # deviation of the logarithm of a client's size, at least 0; 0: equal sizes

    def __post_init__(self) -> None:
        super().__post_init__()
        check("split.sigma", self.sigma, self.sigma >= 0, "at least 0")

    def deal(self, examples: Examples, generator: torch.Generator) -> list[Tensor]:
        draws = torch.randn(self.clients, 1, dtype=torch.float64, generator=generator)
        counts = counts_of((self.sigma * draws).softmax(0), torch.tensor([len(examples)]))
        order = torch.randperm(len(examples), generator=generator)
        return fill_up(list(order.split(counts.flatten().tolist())), self.minimum, generator)
