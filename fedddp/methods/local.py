"""Each client alone: no aggregation. One end of every comparison.

Metrics are the mean over clients of each client's own model on the test set.
"""

from typing import Any, NamedTuple

from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core.task import Task
from fedddp.exchange.messages import Mean, Message, Totals
from fedddp.rounds import method
from fedddp.rounds.method import Server
from fedddp.rounds.solver import PointSolver


class Clients(NamedTuple):
    theta: Tensor  # [C, P] parameters of its own
    solver: Any


class Method(method.Method[Server, Clients]):
    def init_clients(self, count: int, task: Task, local: PointSolver) -> Clients:
        return Clients(task.initial.repeat(count, 1), local.memory(task, count))

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        fit = local.minimise(cohort, clients.theta, clients.solver)
        return Clients(fit.theta, fit.memory), {"theta": Mean(fit.theta)}

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        """The clients' mean, which nobody uses: it lets a checksum speak for all of them."""
        return Server(total["theta"])

    def own_models(self, server: Server, clients: Clients) -> Tensor:
        return clients.theta
