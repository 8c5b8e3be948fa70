"""Exactly `classes` classes for each client, and `points` examples of each.

The split of MNIST over 100 clients in "Federated ADMM from Bayesian Duality": 2 classes with 300 points each. Every
class goes to equally many clients (to within one). Not every point once: a class with too few points for all its
clients gives its first ones out again, to other clients, and what a class has too many is given to nobody. With
dealing=numpy the draws are those of the authors' program: numpy_seed 62, 63 and 64 are the published splits.
"""

from typing import ClassVar

import torch
from torch import Tensor

from fedddp.core.check import check
from fedddp.core.data import Examples
from fedddp.splits._dealing import Counted, class_sizes, deal_counts, labels
from fedddp.splits._numpy import fixed_classes


class Split(Counted):
    repeats: ClassVar[bool] = True
    clients: int = 100
    classes: int = 2  # classes of each client, at least 1
    points: int = 0  # points of each class that a client gets; 0: as many as there are for all
    dealing: str = "balanced"  # balanced: every class as often; or numpy: as published (see above)
    numpy_seed: int = 0  # seed of dealing=numpy, from 0 to 4294967295

    def __post_init__(self) -> None:
        super().__post_init__()
        check("split.classes", self.classes, self.classes >= 1, "at least 1")
        check("split.points", self.points, self.points >= 0, "at least 0")
        check("split.dealing", self.dealing, self.dealing in ("balanced", "numpy"), "balanced or numpy")
        fine = self.dealing == "balanced" or self.classes == 2
        check("split.classes", self.classes, fine, "2 with split.dealing=numpy")
        check("split.numpy_seed", self.numpy_seed, 0 <= self.numpy_seed < 2**32, "from 0 to 4294967295")

    def deal(self, examples: Examples, generator: torch.Generator) -> list[Tensor]:
        targets = labels(examples)
        available = class_sizes(targets)
        present = available.nonzero().flatten()
        check("split.classes", self.classes, self.classes <= len(present), f"at most {len(present)}, as the data has")
        points = self.points or max(1, len(targets) // (self.clients * self.classes))
        smallest = int(available[present].min())
        check("split.points", points, points <= smallest, f"at most {smallest}, the size of the smallest class")
        if self.dealing == "numpy":
            return fixed_classes(targets, self.clients, points, self.numpy_seed)
        counts = torch.zeros(self.clients, len(available), dtype=torch.long)
        rows = torch.arange(self.clients).unsqueeze(1)
        counts[rows, present[self._choices(len(present), generator)]] = points
        return deal_counts(targets, counts, generator, again=True)

    def _choices(self, classes: int, generator: torch.Generator) -> Tensor:
        """[K, classes per client] different classes for each client, every class equally often.

        A class that is still to be given to as many clients as are left must be chosen now; beyond that, classes
        are drawn in proportion to how often they are still to be given.
        """
        base, longer = divmod(self.clients * self.classes, classes)
        due = torch.full((classes,), base)
        due[torch.randperm(classes, generator=generator)[:longer]] += 1
        noise = torch.rand(self.clients, classes, generator=generator).log().neg().log().neg()  # Gumbel
        chosen = torch.empty(self.clients, self.classes, dtype=torch.long)
        for client in range(self.clients):
            score = due.log() + noise[client]
            score[due >= self.clients - client] = torch.inf
            chosen[client] = score.topk(self.classes).indices
            due[chosen[client]] -= 1
        return chosen
