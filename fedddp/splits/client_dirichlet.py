"""Per-client Dirichlet: each client's mix of classes ~ Dir(alpha), classes shared out in proportion; every point once.

q_k ~ Dir(alpha) over classes;  client k gets the share q_kc / Σ_j q_jc of class c's points

As FedFisher and "FedBEns" split their data. Sizes follow from the mixes; for equal sizes see balanced_dirichlet.
"""

import torch
from torch import Tensor

from fedddp.core.data import Examples
from fedddp.splits._dealing import Mixed, class_sizes, counts_of, deal_counts, fill_up, labels, log_dirichlet


class Split(Mixed):
    clients: int = 5
    alpha: float = 0.1

    def deal(self, examples: Examples, generator: torch.Generator) -> list[Tensor]:
        targets = labels(examples)
        available = class_sizes(targets)
        shares = log_dirichlet(self.alpha, self.clients, len(available), generator).softmax(0)  # [K, classes]
        return fill_up(deal_counts(targets, counts_of(shares, available), generator), self.minimum, generator)
