"""Variational learning with all data in one place: the reference line for posteriors.

q <- argmin E_q[Σ_k f_k/τ] + KL(q || N(0, 1/delta)),    by local.name=ivon_opt, a few epochs in each round
"""

from typing import ClassVar

from fedddp.clients.cohort import Cohort
from fedddp.core.task import Task
from fedddp.exchange.messages import Mean, Message, Totals
from fedddp.methods._sites import Server, SiteMethod
from fedddp.rounds.method import Clients
from fedddp.rounds.solver import PosteriorSolver


class Method(SiteMethod[Clients]):
    pools: ClassVar[bool] = True
    undivided: ClassVar[str] = "whose one client has all of the data, and nobody to share with"

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PosteriorSolver
    ) -> tuple[Clients, Message]:
        """One client: its anchor is the prior (`sites`), its start is where it left off."""
        cavity, start = self.temperature * server.sites.unsqueeze(0), self.start(server.lam, cohort)
        lam, solver = self.proper(local.fit(cohort, cavity, self.temperature, start, clients.solver, self.family))
        return Clients(solver), {"lam": Mean(lam)}

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        return Server(total["lam"], server.sites)
