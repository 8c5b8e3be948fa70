"""Fisher merging (Matena & Raffel 2022): every coordinate where the clients' Fisher information wants it.

    client   theta_k <- solver on f_k from theta;    F_k <- diagonal Fisher information of f_k at theta_k
    server   theta   <- Σ_k F_k theta_k / Σ_k F_k    coordinate by coordinate

Where no client knows anything (Σ_k F_k is about 0) the plain mean stands in.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.clients.curvature import ggn_diag, squared_grads
from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.exchange.messages import Mean, Message, Sum, Totals
from fedddp.rounds import method
from fedddp.rounds.method import Clients, Server
from fedddp.rounds.solver import PointSolver

FISHERS: dict[str, Callable[[Cohort, Tensor], Tensor]] = {"ggn": ggn_diag, "empirical": squared_grads}


class Method(method.Method[Server, Clients]):
    fisher: str = "ggn"  # the Fisher information, labels drawn from the model; or empirical, labels as they are
    floor: float = 1e-6  # mean information per example below which a coordinate takes the plain mean

    def __post_init__(self) -> None:
        check("method.fisher", self.fisher, self.fisher in FISHERS, " or ".join(FISHERS))
        check("method.floor", self.floor, self.floor >= 0, "at least 0")

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        fit = local.minimise(cohort, server.theta, clients.solver)
        fisher = FISHERS[self.fisher](cohort, fit.theta)
        message: Message = {
            "theta": Mean(fit.theta),
            "fisher": Sum(fisher),
            "pull": Sum(fisher * fit.theta),
            "examples": Sum(cohort.num_examples),
        }
        return Clients(fit.memory), message

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        known = total["fisher"] > self.floor * total["examples"]
        ratio = total["pull"] / torch.where(known, total["fisher"], 1)
        return Server(torch.where(known, ratio, total["theta"]))

    def bytes_up(self, plain: int, server: Server, total: Totals) -> float:
        """A client sends theta_k, F_k and N_k; that their product is summed too is our way to add up."""
        return (2 * server.theta.numel() + 1) * server.theta.itemsize
