"""The split of the published FedBEns runs: per-client Dirichlet by numpy's seed 3, the same for every seed of a run.

q_k ~ Dir(alpha) over classes;  client k gets the share q_kc / Σ_j q_jc of class c's points

The law is that of client_dirichlet. The published five seeds share this one split, so that their deviation is that of
initialisations and batches alone.
"""

import torch
from torch import Tensor

from fedddp.core.check import check
from fedddp.core.data import Examples
from fedddp.splits._dealing import Mixed, labels
from fedddp.splits._numpy import per_client


class Split(Mixed):
    clients: int = 5  # number of clients, at least 1
    alpha: float = 0.1  # concentration of a client's mix of classes, above 0; small: few classes per client
    numpy_seed: int = 3  # seed of the split, from 0 to 4294967295; as published, whatever the run's seed

    def __post_init__(self) -> None:
        super().__post_init__()
        check("split.numpy_seed", self.numpy_seed, 0 <= self.numpy_seed < 2**32, "from 0 to 4294967295")

    def deal(self, examples: Examples, generator: torch.Generator) -> list[Tensor]:
        return per_client(labels(examples), self.clients, self.alpha, self.numpy_seed)
