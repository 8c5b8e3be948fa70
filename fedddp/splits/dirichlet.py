"""Two-level Dirichlet: client sizes ~ Dir(size_alpha), classes within a client ~ Dir(alpha); every point once.

p ~ Dir(size_alpha) over clients,  q_k ~ Dir(alpha) over classes
client k gets the share p_k q_kc / Σ_j p_j q_jc of class c's points

The heterogeneous split of "Connecting Federated ADMM to Bayes" (App. E.1) and "Federated ADMM from Bayesian Duality".
With dealing=published a share becomes round(n_c · share) points, a count of 1 becomes 2, and the roundings need not
add up: the last clients may get fewer of a class, and a few points may be given to nobody. With dealing=numpy the
draws are those of the authors' programs as well: numpy_seed 62, 63 and 64 are the published splits, and `share` is
their share of the data, which they take while dealing (data.fraction is then 1).
"""

import torch
from torch import Tensor

from fedddp.core.check import check
from fedddp.core.data import Examples
from fedddp.splits._dealing import (
    Mixed,
    check_alpha,
    class_sizes,
    counts_of,
    deal_counts,
    fill_up,
    labels,
    log_dirichlet,
)
from fedddp.splits._numpy import two_level

DEALINGS = ("exact", "published", "numpy")


class Split(Mixed):
    size_alpha: float = 1.0  # concentration of the clients' sizes, above 0; small: very unequal clients
    dealing: str = "exact"  # exact: every point once; or published, or numpy: as in two programs (see above)
    numpy_seed: int = 0  # seed of dealing=numpy, from 0 to 4294967295
    share: float = 1.0  # share of each class that is dealt out, with dealing=numpy, in (0, 1]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_alpha("split.size_alpha", self.size_alpha)
        check("split.dealing", self.dealing, self.dealing in DEALINGS, " or ".join(DEALINGS))
        check("split.numpy_seed", self.numpy_seed, 0 <= self.numpy_seed < 2**32, "from 0 to 4294967295")
        fine = 0 < self.share <= 1 and (self.share == 1 or self.dealing == "numpy")
        check("split.share", self.share, fine, "in (0, 1], and 1 unless split.dealing=numpy; data.fraction does there")

    def deal(self, examples: Examples, generator: torch.Generator) -> list[Tensor]:
        targets = labels(examples)
        if self.dealing == "numpy":
            return two_level(targets, self.clients, self.size_alpha, self.alpha, self.share, self.numpy_seed)
        available = class_sizes(targets)
        sizes = log_dirichlet(self.size_alpha, 1, self.clients, generator)
        mixes = log_dirichlet(self.alpha, self.clients, len(available), generator)
        shares = (sizes.T + mixes).softmax(0)  # [K, classes]
        if self.dealing == "published":
            counts = (shares * available).round().long()
            counts[counts == 1] = 2
        else:
            counts = counts_of(shares, available)
        return fill_up(deal_counts(targets, counts, generator), self.minimum, generator)
