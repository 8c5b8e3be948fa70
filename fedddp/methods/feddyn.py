"""FedDyn (Acar et al. 2021; as in "Connecting Federated ADMM to Bayes", section 2 and App. D).

    client   theta_k <- argmin f_k(theta) + ½ weight_decay |theta|² + <v_k, theta> + ½ alpha |theta - theta_server|²
             v_k     <- v_k + alpha (theta_k - theta_server)
    server   theta   <- Mean_active theta_k + Σ_all v_k / (alpha K)

A dual's change is linear in theta_k, so the mean tells the sum of all changes and they need not be sent. alpha is on
the sum loss, which is alpha/N_k on the mean loss; so is weight_decay, or on the mean loss itself, as the authors'
programs have it (decay_scale). With every client active and no decay this is fedadmm, iterate by iterate.
"""

from typing import ClassVar

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.exchange.messages import Mean, Message, Sum, Totals
from fedddp.methods import federated_admm
from fedddp.methods.federated_admm import Clients, Server, admm_step, primal
from fedddp.rounds import method
from fedddp.rounds.solver import PointSolver


class Method(method.Method[Server, Clients]):
    by_solver: ClassVar[bool] = True
    alpha: float = 0.1  # weight of ½|theta - theta_server|² in a client's sum loss, and the dual's step; above 0
    weight_decay: float = 0.0  # weight of ½|theta|² in a client's problem, at least 0
    decay_scale: str = "sum"  # what the decay is added to: sum (the loss f_k) or, as published, mean (the loss f_k/N_k)

    def __post_init__(self) -> None:
        check("method.alpha", self.alpha, self.alpha > 0, "above 0")
        check("method.decay_scale", self.decay_scale, self.decay_scale in ("sum", "mean"), "sum or mean")
        check("method.weight_decay", self.weight_decay, self.weight_decay >= 0, "at least 0")

    def init_server(self, task: Task) -> Server:
        return federated_admm.Method().init_server(task)

    def init_clients(self, count: int, task: Task, local: PointSolver) -> Clients:
        return federated_admm.Method().init_clients(count, task, local)

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        decay = self.weight_decay * (cohort.num_examples.unsqueeze(1) if self.decay_scale == "mean" else 1.0)
        theta, change, solver = admm_step(server.theta, clients, cohort, local, self.alpha, decay)
        message: Message = {
            "theta": Mean(theta),
            "clients": Sum(torch.ones_like(cohort.num_examples)),
            "primal": primal(theta, server.theta),
        }
        return Clients(clients.dual + change, solver), message

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        duals = server.duals + total["clients"] * self.alpha * (total["theta"] - server.theta)
        return Server(total["theta"] + duals / (self.alpha * task.num_clients), duals)

    def forget(self, server: Server, client: Clients, task: Task) -> Server:
        """The dual is taken out; the parameters follow in later rounds."""
        return Server(server.theta, server.duals - client.dual[0])

    def duals(self, clients: Clients) -> Tensor:
        return clients.dual

    def metrics(self, before: Server, after: Server, total: Totals) -> dict[str, float]:
        dual = self.alpha * float((after.theta - before.theta).norm())
        return {"primal_residual": float(total["primal"].sqrt()), "dual_residual": dual}
