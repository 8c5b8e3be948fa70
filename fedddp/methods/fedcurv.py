"""FedCurv (Shoham et al. 2019; a baseline of HWA): each client is held back where the others' loss is curved.

    client   theta_k <- solver on f_k/N_k + penalty Σ_{j≠k} (theta - theta_j)ᵀ F_j (theta - theta_j)
             F_k     <- Σ_i (∂loss_i/∂theta)²/N_k at theta_k
    server   theta   <- Σ_k N_k theta_k / Σ_k N_k

With scale = sum, f_k and Σ_i stand without the division by N_k. The penalty is a Gaussian site: the server keeps the
sums of F_j and F_j theta_j over all clients by their changes, and a client takes its own out.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.clients.curvature import squared_grads
from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.exchange.messages import Mean, Message, Sum, Totals
from fedddp.methods._channel import perturb
from fedddp.rounds import method
from fedddp.rounds.solver import PointSolver


class Server(NamedTuple):
    theta: Tensor  # [P] the parameters
    sites: Tensor  # [2, P] Σ_j (F_j theta_j, F_j) over all clients


class Clients(NamedTuple):
    site: Tensor  # [C, 2, P] its own (F_k theta_k, F_k), from when it last took part
    solver: Any


class Method(method.Method[Server, Clients]):
    penalty: float = 1.0  # weight of the pull towards the other clients' parameters, at least 0
    scale: str = "mean"  # what the penalty is added to: mean (the loss f_k/N_k) or sum (the loss f_k)
    noise: float = 0.0  # deviation of Gaussian noise on a client's parameters and curvature, at least 0

    def __post_init__(self) -> None:
        check("method.penalty", self.penalty, self.penalty >= 0, "at least 0")
        check("method.scale", self.scale, self.scale in ("sum", "mean"), "sum or mean")
        check("method.noise", self.noise, self.noise >= 0, "at least 0")

    def broadcast(self, server: Server) -> tuple[Tensor, ...]:
        return server.theta, server.sites

    def init_server(self, task: Task) -> Server:
        return Server(task.initial, task.initial.new_zeros(2, task.layout.numel))

    def init_clients(self, count: int, task: Task, local: PointSolver) -> Clients:
        site = torch.zeros(count, 2, task.layout.numel, dtype=task.dtype, device=task.device)
        return Clients(site, local.memory(task, count))

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        scale = cohort.num_examples.view(-1, 1, 1) if self.scale == "mean" else 1.0
        others = 2 * self.penalty * scale * (server.sites - clients.site)
        others[:, 1].clamp_min_(0)  # sums kept by changes are rounded
        fit = local.minimise(cohort, server.theta, clients.solver, others)
        theta = perturb(fit.theta, self.noise, cohort, "update")
        fisher = perturb(squared_grads(cohort, fit.theta), self.noise, cohort, "curvature").clamp_min(0)
        site = torch.stack([fisher * theta, fisher], dim=1) / scale
        message: Message = {
            "theta": Mean(theta, weight=cohort.num_examples),
            "site_change": Sum(site - clients.site),
        }
        return Clients(site, fit.memory), message

    def forget(self, server: Server, client: Clients, task: Task) -> Server:
        """The penalty is taken out; the parameters follow in later rounds."""
        return Server(server.theta, server.sites - client.site[0])

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        return Server(total["theta"], server.sites + total["site_change"])
