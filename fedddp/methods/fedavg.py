"""Federated averaging (McMahan et al. 2017).

client   theta_k <- solver on f_k from theta, and if asked to, Gaussian noise on it
server   theta   <- Σ_k N_k theta_k / Σ_k N_k
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from fedddp.cohort import Cohort
from fedddp.local import Point, check
from fedddp.methods._noise import perturb
from fedddp.reduce import Mean, Message, Totals
from fedddp.task import Task


class Server(NamedTuple):
    theta: Tensor  # [P]


class Clients(NamedTuple):
    solver: Any  # the local solver's memory, where it keeps one


@dataclass
class Method:
    sends: ClassVar[tuple[str, str]] = ("theta", "theta")  # what may be compressed, as a change of the server's
    noise: float = 0.0  # deviation of Gaussian noise on what a client sends

    def __post_init__(self) -> None:
        check("method.noise", self.noise, self.noise >= 0, "at least 0")

    def init_server(self, task: Task) -> Server:
        return Server(task.initial)

    def init_clients(self, count: int, task: Task, local: Point) -> Clients:
        return Clients(local.memory(task, count))

    def client_step(self, server: Server, clients: Clients, cohort: Cohort, local: Point) -> tuple[Clients, Message]:
        fit = local.minimise(cohort, server.theta, clients.solver)
        theta = perturb(fit.theta, self.noise, cohort, "update")
        return Clients(fit.memory), {"theta": Mean(theta, weight=cohort.num_examples)}

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        return Server(total["theta"])
