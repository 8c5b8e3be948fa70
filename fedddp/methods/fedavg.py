"""Federated averaging (McMahan et al. 2017).

client   theta_k <- solver on f_k from theta, and if asked to, Gaussian noise on it
server   theta   <- Σ_k N_k theta_k / Σ_k N_k
"""

from typing import ClassVar

from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.exchange.messages import Mean, Message, Totals
from fedddp.methods._channel import perturb
from fedddp.rounds import method
from fedddp.rounds.method import Clients, Server
from fedddp.rounds.solver import PointSolver


class Method(method.Method):
    by_solver: ClassVar[bool] = True
    compresses: ClassVar[str] = "theta"
    noise: float = 0.0  # deviation of Gaussian noise on each number that a client sends, at least 0

    def __post_init__(self) -> None:
        check("method.noise", self.noise, self.noise >= 0, "at least 0")

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        fit = local.minimise(cohort, server.theta, clients.solver)
        theta = perturb(fit.theta, self.noise, cohort, "update")
        return Clients(fit.memory), {"theta": Mean(theta, weight=cohort.num_examples)}

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        return Server(total["theta"])

    def base(self, server: Server) -> Tensor:
        return server.theta
