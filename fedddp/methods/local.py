"""Each client alone: no aggregation. One end of every comparison.

Metrics are the mean over clients of each client's own model on the test set.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from fedddp.cohort import Cohort
from fedddp.local import Point
from fedddp.reduce import Mean, Message, Totals
from fedddp.task import Task


class Server(NamedTuple):
    theta: Tensor  # [P] the clients' mean, which nobody uses: it lets a checksum speak for all of them


class Clients(NamedTuple):
    theta: Tensor  # [C, P]
    solver: Any


@dataclass
class Method:
    evaluates: ClassVar[str] = "clients"

    def init_server(self, task: Task) -> Server:
        return Server(task.initial)

    def init_clients(self, count: int, task: Task, local: Point) -> Clients:
        return Clients(task.initial.repeat(count, 1), local.memory(task, count))

    def client_step(self, server: Server, clients: Clients, cohort: Cohort, local: Point) -> tuple[Clients, Message]:
        fit = local.minimise(cohort, clients.theta, clients.solver)
        return Clients(fit.theta, fit.memory), {"theta": Mean(fit.theta)}

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        return Server(total["theta"])
