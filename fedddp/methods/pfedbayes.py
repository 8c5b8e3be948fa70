"""pFedBayes (Zhang et al. 2022): each client has a posterior of its own, whose prior is the server's.

    client   q_k <- argmin E_q[f_k/τ] + zeta KL(q || q_server)      from q_k of the round before
    server   the moments of q_server <- (1 - beta) theirs + beta Mean_k those of q_k

With beta=1 the server takes argmin_q Σ_k KL(q_k || q), so that Σ_k E_k[f_k/τ] + zeta KL(q_k || q_server) falls in every
round. Reconstructed from that objective: in the paper a client sends a copy of the server's Gaussian after gradient
steps on KL(q_k || ·), here q_k's moments, with which the server's problem is solved exactly.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.exchange.messages import Mean, Message, Totals
from fedddp.methods._barycentre import RULES
from fedddp.methods._sites import Server, SiteMethod
from fedddp.rounds.solver import PosteriorSolver

RULE = RULES["forward_kl"]


class Clients(NamedTuple):
    lam: Tensor  # [C, ...] each client's own posterior
    rounds: Tensor  # [C] that the client took part in
    solver: Any


class Method(SiteMethod[Clients]):
    zeta: float = 1.0  # weight of the divergence from the server's posterior in a client's problem, above 0
    beta: float = 1.0  # the server's step towards the clients' mean moments, in (0, 1]

    def __post_init__(self) -> None:
        super().__post_init__()
        check("method.zeta", self.zeta, self.zeta > 0, "above 0")
        check("method.beta", self.beta, 0 < self.beta <= 1, "in (0, 1]")

    def init_clients(self, count: int, task: Task, local: PosteriorSolver) -> Clients:
        prior, rounds = self.init_server(task).lam, task.initial.new_zeros(count)
        return Clients(prior.repeat(count, *[1] * prior.dim()), rounds, local.memory(task, count))

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PosteriorSolver
    ) -> tuple[Clients, Message]:
        weight = self.temperature * self.zeta
        cavity = (weight * server.lam).repeat(len(cohort), *[1] * server.lam.dim())
        start = self._begin(server, clients, cohort)
        lam, solver = self.proper(local.fit(cohort, cavity, weight, start, clients.solver, self.family))
        first, second = RULE.parts(self.family, lam, server.theta)
        return Clients(lam, clients.rounds + 1, solver), {"first": Mean(first), "second": Mean(second)}

    def _begin(self, server: Server, clients: Clients, cohort: Cohort) -> Tensor:
        """A client's own posterior; the server's where it has none yet.

        The server's variance holds the spread of the clients: fits that began there in every round would have that
        much noise in their gradients, and diverge.
        """
        begun = clients.rounds.view(-1, *[1] * server.lam.dim()) > 0
        return torch.where(begun, clients.lam, self.start(server.lam, cohort))

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        first, second = RULE.parts(self.family, server.lam, server.theta)
        mean, square = first.lerp(total["first"], self.beta), second.lerp(total["second"], self.beta)
        return Server(RULE.whole(self.family, mean, square, server.theta), server.sites)

    def own_models(self, server: Server, clients: Clients) -> Tensor:
        return self.family.mean(clients.lam)
