"""Partitioned variational inference (Ashman et al. 2022; "Connecting Federated ADMM to Bayes", Eq. 5-6), damped or not.

    client   q_k    <- argmin E_q[f_k/τ + <dual_k, T(theta)>] + KL(q || q_server)
             dual_k <- dual_k + damping (lam_k - lam)
    server   lam    <- lam_0 + Σ_k dual_k

At a fixed point dual_k = -∇_mu E_q[f_k/τ]. damping=1 is the undamped method, which may diverge.
"""

from typing import ClassVar

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core.task import Task
from fedddp.exchange.messages import Message, Sum, Totals
from fedddp.methods._sites import Clients, DualMethod, Server, check_damping, dual_rate
from fedddp.rounds.solver import PosteriorSolver


class Method(DualMethod):
    by_solver: ClassVar[bool] = True
    clips: ClassVar[str] = "dual_change"
    damping: float | str = "1/K"  # the site's step: a number in (0, 1], 1/K or N_k/N
    warmup: int = 0  # first rounds in which the damping is N_k/N, whatever it says; at least 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_damping(self.damping, self.warmup)

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PosteriorSolver
    ) -> tuple[Clients, Message]:
        lam, solver = self.fit(server, clients, cohort, local, rho=1.0)
        step = dual_rate(self.damping, self.warmup, cohort)
        change = step.view(-1, *[1] * (lam.dim() - 1)) * (lam - server.lam)
        return Clients(clients.dual + change, solver), {"dual_change": Sum(change)}

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        sites = server.sites + total["dual_change"]
        return Server(sites, sites)

    def base(self, server: Server) -> Tensor:
        return torch.zeros_like(server.lam)

    def remember(self, clients: Clients, own: Clients, change: Tensor) -> Clients:
        return own._replace(dual=clients.dual + change)

    def noisy(self, server: Server, change: Tensor, clients: float) -> Totals:
        return {"dual_change": change}
