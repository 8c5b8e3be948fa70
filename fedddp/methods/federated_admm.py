"""Federated ADMM (Boyd et al. 2011; in the form of "Federated ADMM from Bayesian Duality", Fig. 2a and App. C.1).

    client   theta_k <- argmin f_k(theta) + <v_k, theta> + ½ rho |theta - theta_server|²
             v_k     <- v_k + rho (theta_k - theta_server)
    server   theta   <- (1 - alpha) Mean_k theta_k + (alpha/delta) Σ_k v_k,    alpha = delta/(delta + rho K)

With alpha = 1 the server has no proximal term, which is the Alternating Minimization Algorithm (Tseng 1991; App. A).
v_k has the sign of a likelihood site: v_k = -∇f_k(theta_k), and theta = Σ_k v_k / delta at the fixed point, the
pooled minimiser with weight decay delta. The server keeps the sum of all duals by their changes, so clients that
sit out a round still count.
"""

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.exchange.messages import Mean, Message, Sum, Totals
from fedddp.rounds import method
from fedddp.rounds.solver import PointSolver


class Server(NamedTuple):
    theta: Tensor  # [P] the parameters
    duals: Tensor  # [P] sum of the duals of all clients, active or not


class Clients(NamedTuple):
    dual: Tensor  # [C, P] its multiplier
    solver: Any


class Method(method.Method[Server, Clients]):
    by_solver: ClassVar[bool] = True
    rho: float = 0.1  # weight of ½|theta - theta_server|² in a client's problem, and the dual's step; above 0
    delta: float = 1.0  # the prior's precision: weight of ½|theta|² beside the sum of all losses, above 0
    alpha: float = 0.0  # weight of the duals in the server's step, in (0, 1]; 1: AMA; 0: delta/(delta + rho K)

    def __post_init__(self) -> None:
        check("method.alpha", self.alpha, 0 <= self.alpha <= 1, "in (0, 1], or 0 for delta/(delta + rho K)")
        check("method.rho", self.rho, self.rho > 0, "above 0")
        check("method.delta", self.delta, self.delta > 0, "above 0")

    def init_server(self, task: Task) -> Server:
        return Server(task.initial, torch.zeros_like(task.initial))

    def init_clients(self, count: int, task: Task, local: PointSolver) -> Clients:
        dual = torch.zeros(count, task.layout.numel, dtype=task.dtype, device=task.device)
        return Clients(dual, local.memory(task, count))

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        theta, change, solver = admm_step(server.theta, clients, cohort, local, self.rho)
        message: Message = {"theta": Mean(theta), "dual_change": Sum(change), "primal": primal(theta, server.theta)}
        return Clients(clients.dual + change, solver), message

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        duals = server.duals + total["dual_change"]
        alpha = self.alpha or self.delta / (self.delta + self.rho * task.num_clients)
        return Server((1 - alpha) * total["theta"] + alpha / self.delta * duals, duals)

    def forget(self, server: Server, client: Clients, task: Task) -> Server:
        """The dual is taken out; the parameters follow in later rounds."""
        return Server(server.theta, server.duals - client.dual[0])

    def duals(self, clients: Clients) -> Tensor:
        return clients.dual

    def metrics(self, before: Server, after: Server, total: Totals) -> dict[str, float]:
        """How far clients are from the server (root mean square), and how far the server moved times rho."""
        primal = float(total["primal"].sqrt())
        return {
            "primal_residual": primal,
            "dual_residual": self.rho * float((after.theta - before.theta).norm()),
        }


def admm_step(
    anchor: Tensor, clients: Any, cohort: Cohort, local: PointSolver, rho: Tensor | float, decay: Tensor | float = 0.0
) -> tuple[Tensor, Tensor, Any]:
    """theta_k [C, P], the change of the dual and the solver's memory: the client step of every ADMM here.

    The client's site is the server's pull minus its own dual; rho and decay are one number or a row [C, 1] per client.
    """
    rho = torch.as_tensor(rho, dtype=anchor.dtype, device=anchor.device)
    precision = (rho + decay).expand_as(clients.dual)
    site = torch.stack([rho * anchor - clients.dual, precision], dim=-2)  # [C, 2, P]
    fit = local.minimise(cohort, anchor, clients.solver, site)
    return fit.theta, rho * (fit.theta - anchor), fit.memory


def primal(theta: Tensor, anchor: Tensor) -> Mean:
    return Mean((theta - anchor).square().sum(1))
