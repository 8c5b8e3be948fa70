"""BA-BFL (Jamoussi et al. 2024): the server takes the barycentre of the clients' Gaussian posteriors.

    client   q_k <- argmin E_q[f_k/τ] + KL(q || prior),    started at the server's posterior
    server   q   <- the barycentre of all q_k by a rule of fedddp/methods/_barycentre.py, weights w_k

    prior    fixed    N(0, 1/delta), for every client anew
             share    its K-th root: the clients' priors make up one
             server   the server's posterior of the round before; with means of natural parameters its precision grows
                      by the clients' mean information in every round

Any solver that fits Gaussians will do, in any family that both have. With prior=share, barycentre=conflation, plain
weights and exact posteriors of Gaussian clients one round gives the pooled posterior. A conflation is the product of
all K clients' posteriors, of which those who take part give the mean factor; it knows K times what a client does, so
clients start at its K-th root. The rules reverse_kl and wasserstein are the paper's, reconstructed from their
definitions; the choice of the prior is ours.
"""

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core import gaussian
from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.exchange.messages import Gather, Mean, Message, Totals
from fedddp.methods._barycentre import RULES, Rule, transported
from fedddp.methods._sites import Server, SiteMethod
from fedddp.rounds.method import Clients
from fedddp.rounds.solver import PosteriorSolver

PRIORS = ("fixed", "share", "server")


class Method(SiteMethod[Clients]):
    barycentre: str = "reverse_kl"  # reverse_kl, conflation, forward_kl, wasserstein, arithmetic or log_variance
    weights: str = "examples"  # of the clients in it: examples or plain (every client alike)
    prior: str = "fixed"  # of a client: fixed (N(0, 1/delta)), share (its K-th root) or server (its posterior)

    def __post_init__(self) -> None:
        super().__post_init__()
        check("method.barycentre", self.barycentre, self.barycentre in RULES, " or ".join(RULES))
        check("method.weights", self.weights, self.weights in ("examples", "plain"), "examples or plain")
        check("method.prior", self.prior, self.prior in PRIORS, " or ".join(PRIORS))

    @property
    def _rule(self) -> Rule:
        return RULES[self.barycentre]

    @property
    def _together(self) -> bool:
        return self._rule.together and self.family is gaussian.full

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PosteriorSolver
    ) -> tuple[Clients, Message]:
        prior = server.lam if self.prior == "server" else server.sites
        tau = self.temperature / (cohort.task.num_clients if self.prior == "share" else 1)
        cavity = (tau * prior).repeat(len(cohort), *[1] * prior.dim())
        start = self.start(self._power(server.lam, cohort), cohort)
        found = self.proper(local.fit(cohort, cavity, self.temperature, start, clients.solver, self.family))
        weight = cohort.num_examples if self.weights == "examples" else torch.ones_like(cohort.num_examples)
        if self._together:
            return Clients(found[1]), {"lam": Gather(found[0]), "weight": Gather(weight)}
        first, second = self._rule.parts(self.family, found[0], server.theta)
        return Clients(found[1]), {"first": Mean(first, weight), "second": Mean(second, weight)}

    def _power(self, lam: Tensor, cohort: Cohort) -> Tensor:
        """Where clients start; what all of them know together would hold each of them fast."""
        return lam / cohort.task.num_clients if self._rule.product and cohort.round else lam

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        if self._together:
            here = total["weight"] > 0  # a client that was left out of the round has an empty row
            return Server(transported(total["lam"][here], total["weight"][here]), server.sites)
        times = task.num_clients if self._rule.product else 1
        first, second = times * total["first"], times * total["second"]
        return Server(self._rule.whole(self.family, first, second, server.theta), server.sites)
