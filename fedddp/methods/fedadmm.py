"""FedADMM ("Connecting Federated ADMM to Bayes", Eq. 2).

    client   theta_k <- argmin f_k(theta) + <v_k, theta> + ½ alpha |theta - theta_server|²
             v_k     <- v_k + alpha (theta_k - theta_server)
    server   theta   <- Mean_k (theta_k + v_k/alpha)

With scale = mean the client's loss is f_k/N_k, as Eq. 2 prints; the fixed point is then the minimiser of Σ_k f_k/N_k.
With scale = sum it is the pooled minimiser.
"""

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.exchange.messages import Mean, Message, Totals
from fedddp.methods.federated_admm import admm_step, primal
from fedddp.rounds import method
from fedddp.rounds.method import Server
from fedddp.rounds.solver import PointSolver


class Clients(NamedTuple):
    dual: Tensor  # [C, P] its multiplier
    solver: Any


class Method(method.Method[Server, Clients]):
    by_solver: ClassVar[bool] = True
    alpha: float = 0.1  # weight of ½|theta - theta_server|² in a client's problem, and the dual's step; above 0
    scale: str = "sum"  # what penalty and dual are added to: sum (the loss f_k) or mean (the loss f_k/N_k)
    dual_step: bool = True  # false holds the duals at 0, which makes it fedprox with a plain mean

    def __post_init__(self) -> None:
        check("method.alpha", self.alpha, self.alpha > 0, "above 0")
        check("method.scale", self.scale, self.scale in ("sum", "mean"), "sum or mean")

    def init_clients(self, count: int, task: Task, local: PointSolver) -> Clients:
        dual = torch.zeros(count, task.layout.numel, dtype=task.dtype, device=task.device)
        return Clients(dual, local.memory(task, count))

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        alpha = self.alpha * (cohort.num_examples.unsqueeze(1) if self.scale == "mean" else 1.0)
        theta, change, solver = admm_step(server.theta, clients, cohort, local, alpha)
        dual = clients.dual + change if self.dual_step else clients.dual
        message: Message = {"theta": Mean(theta + dual / alpha), "primal": primal(theta, server.theta)}
        return Clients(dual, solver), message

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        return Server(total["theta"])

    def forget(self, server: Server, client: Clients, task: Task) -> Server:
        """The server keeps no sum of duals: the client's goes with its row, and the parameters follow."""
        return server

    def duals(self, clients: Clients) -> Tensor:
        return clients.dual

    def metrics(self, before: Server, after: Server, total: Totals) -> dict[str, float]:
        dual = self.alpha * float((after.theta - before.theta).norm())
        return {"primal_residual": float(total["primal"].sqrt()), "dual_residual": dual}
