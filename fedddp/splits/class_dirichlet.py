"""Per-class Dirichlet: each class is shared out over clients ~ Dir(alpha); every point once.

s_c ~ Dir(alpha) over clients;  client k gets the share s_ck of class c's points

"Hessian-weighted aggregation" (HWA), non-IID type I: clients differ in their classes and in their size.
"""

import torch
from torch import Tensor

from fedddp.core.data import Examples
from fedddp.splits._dealing import Mixed, class_sizes, counts_of, deal_counts, fill_up, labels, log_dirichlet


class Split(Mixed):
    alpha: float = 0.1  # concentration of a class's shares, above 0; small: a class lies with few clients

    def deal(self, examples: Examples, generator: torch.Generator) -> list[Tensor]:
        targets = labels(examples)
        available = class_sizes(targets)
        shares = log_dirichlet(self.alpha, len(available), self.clients, generator).exp().T  # [K, classes]
        return fill_up(deal_counts(targets, counts_of(shares, available), generator), self.minimum, generator)
