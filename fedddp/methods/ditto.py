"""Ditto (Li et al. 2021): beside the shared model each client has its own, which is held near to the shared one.

    client   theta_k <- solver on f_k from theta                                     (for the server, as in fedavg)
             own_k   <- solver on f_k/N_k + ½ delta |own - theta|² from own_k        (scale = mean)
    server   theta   <- Σ_k N_k theta_k / Σ_k N_k

Own models never leave their clients, and the server's model is federated averaging's, bit for bit. delta=0 leaves each
client alone. Reconstructed from the definition of the objective.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core import gaussian
from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.exchange.messages import Mean, Message, Totals
from fedddp.rounds import method
from fedddp.rounds.method import Server
from fedddp.rounds.solver import PointSolver


class Clients(NamedTuple):
    own: Tensor  # [C, P] each client's own model
    solver: Any  # the solver's memory of its work for the server
    personal: Any  # the solver's memory of its work on the own model


class Method(method.Method[Server, Clients]):
    delta: float = 0.1  # weight of ½|own - theta|² in the problem of a client's own model, at least 0
    scale: str = "mean"  # what the penalty is added to: mean, as published (the loss f_k/N_k), or sum (the loss f_k)

    def __post_init__(self) -> None:
        check("method.delta", self.delta, self.delta >= 0, "at least 0")
        check("method.scale", self.scale, self.scale in ("sum", "mean"), "sum or mean")

    def init_clients(self, count: int, task: Task, local: PointSolver) -> Clients:
        return Clients(task.initial.repeat(count, 1), local.memory(task, count), local.memory(task, count))

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        """The own model's batches have streams of their own: member 1 of each client."""
        fit = local.minimise(cohort, server.theta, clients.solver)
        site = gaussian.diagonal.natural(server.theta, self.delta)
        if self.scale == "mean":
            site = site * cohort.num_examples.view(-1, 1, 1)
        again = cohort.part(torch.arange(len(cohort)), member=1)
        own = local.minimise(again, clients.own, clients.personal, site)
        kept = Clients(own.theta, fit.memory, own.memory)
        return kept, {"theta": Mean(fit.theta, weight=cohort.num_examples)}

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        return Server(total["theta"])

    def own_models(self, server: Server, clients: Clients) -> Tensor:
        return clients.own
