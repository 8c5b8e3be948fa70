"""Two halves of clients: small ones with few positives, large ones with many. The UCI Credit split.

Of Ashman et al. (2022), as used in "Connecting Federated ADMM to Bayes" (App. E.2): 5 clients with 36 points, 6 % of
them positive, and 5 with 67 points, 66 % positive. Where a class runs out, the other fills in. Not every point: what
is beyond these sizes is given to nobody.
"""

from dataclasses import field

import torch
from torch import Tensor

from fedddp.core.check import check
from fedddp.core.data import Examples
from fedddp.splits._dealing import Counted, class_sizes, deal_counts, fill_up, labels

MOST = 1_000_000  # points of a client


class Split(Counted):
    sizes: list[int] = field(default_factory=lambda: [36, 67])  # points of a client in either half
    positives: list[float] = field(default_factory=lambda: [0.06, 0.66])  # shares of class 1 among them, in [0, 1]

    def __post_init__(self) -> None:
        super().__post_init__()
        fine = len(self.sizes) == 2 and min(self.sizes) >= 1 and max(self.sizes) <= MOST
        check("split.sizes", self.sizes, fine, f"two sizes from 1 to {MOST:,}")
        fine = len(self.positives) == 2 and all(0 <= share <= 1 for share in self.positives)
        check("split.positives", self.positives, fine, "two shares in [0, 1]")

    def deal(self, examples: Examples, generator: torch.Generator) -> list[Tensor]:
        targets = labels(examples)
        classes = len(class_sizes(targets))
        if classes > 2:
            raise ValueError(f"split.name=credit: the data has {classes} classes; this split is for two")
        half = (torch.arange(self.clients) >= self.clients // 2).long()
        size = torch.tensor(self.sizes)[half]
        positive = (size * torch.tensor(self.positives, dtype=torch.float64)[half]).round().long()
        counts = torch.stack([size - positive, positive], dim=1)
        for label, available in enumerate(class_sizes(targets).tolist()):
            left = available - counts[:, label].cumsum(0)  # below 0: where this class runs out, the other fills in
            lost = torch.minimum((-left).clamp_min(0), counts[:, label])
            counts[:, label] -= lost
            counts[:, 1 - label] += lost
        return fill_up(deal_counts(targets, counts[:, :classes], generator), self.minimum, generator)
