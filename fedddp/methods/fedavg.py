"""Federated averaging (McMahan et al. 2017).

client   theta_k <- solver on f_k from theta
server   theta   <- Σ_k N_k theta_k / Σ_k N_k
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from fedddp.cohort import Cohort
from fedddp.local import Point
from fedddp.reduce import Mean, Message, Totals
from fedddp.task import Task


class Server(NamedTuple):
    theta: Tensor  # [P]


class Clients(NamedTuple):
    solver: Any  # the local solver's memory, where it keeps one


@dataclass
class Method:
    def init_server(self, task: Task) -> Server:
        return Server(task.initial)

    def init_clients(self, count: int, task: Task, local: Point) -> Clients:
        return Clients(local.memory(task, count))

    def client_step(self, server: Server, clients: Clients, cohort: Cohort, local: Point) -> tuple[Clients, Message]:
        fit = local.minimise(cohort, server.theta, clients.solver)
        return Clients(fit.memory), {"theta": Mean(fit.theta, weight=cohort.num_examples)}

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        return Server(total["theta"])
