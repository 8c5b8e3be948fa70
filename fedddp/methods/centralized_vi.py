"""Variational learning with all data in one place: the reference line for posteriors.

q <- argmin E_q[Σ_k f_k/τ] + KL(q || N(0, 1/delta)),    by local.name=ivon_opt, a few epochs in each round
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from fedddp.cohort import Cohort
from fedddp.local import Posterior
from fedddp.methods import _sites
from fedddp.methods._sites import Server
from fedddp.reduce import Mean, Message, Totals
from fedddp.task import Task


class Clients(NamedTuple):
    solver: Any


@dataclass
class Method(_sites.Settings):
    pools: ClassVar[bool] = True

    def init_clients(self, count: int, task: Task, local: Posterior) -> Clients:  # type: ignore[override]
        return Clients(super().init_clients(count, task, local).solver)

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: Posterior
    ) -> tuple[Clients, Message]:
        """One client: its anchor is the prior (`sites`), its start is where it left off."""
        cavity, start = self.temperature * server.sites.unsqueeze(0), self.start(server.lam, cohort)
        lam, solver = self.proper(local.fit(cohort, cavity, self.temperature, start, clients.solver, self.family))
        return Clients(solver), {"lam": Mean(lam)}

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        return Server(total["lam"], server.sites)
