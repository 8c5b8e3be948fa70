"""SCAFFOLD (Karimireddy et al. 2020): control variates c_k ≈ ∇loss_k and c ≈ their mean correct the clients' drift.

    client   theta_k <- SGD on f_k/N_k + <c - c_k, theta> from theta
             c_k     <- ∇f_k(theta)/N_k                                   (option I)
             c_k     <- c_k - c + (theta - theta_k)/(steps · lr)          (option II)
    server   theta   <- theta - lr Mean_active (theta - theta_k);    c <- c + Σ_active (change of c_k) / K

The means are plain, as published, which minimises Σ_k f_k/N_k; with weights = examples a client counts N_k times
in both, which minimises the pooled Σ_k f_k. The correction is a linear site.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core import gaussian
from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.exchange.messages import Mean, Message, Sum, Totals
from fedddp.local import sgd
from fedddp.rounds import method
from fedddp.rounds.fit_cache import Cached
from fedddp.rounds.solver import Fit, PointSolver, Solver


class Server(NamedTuple):
    theta: Tensor  # [P] the parameters
    control: Tensor  # [P] mean of the controls of all clients, active or not


class Clients(NamedTuple):
    control: Tensor  # [C, P] c_k, its control variate
    solver: Any


class Method(method.Method[Server, Clients]):
    option: str = "II"  # how c_k is renewed: I takes a pass over the client's data, II is free
    weights: str = "plain"  # of the clients in both means: plain or examples
    lr: float = 1.0  # the server's learning rate, above 0

    def __post_init__(self) -> None:
        check("method.option", self.option, self.option in ("I", "II"), "I or II")
        check("method.weights", self.weights, self.weights in ("plain", "examples"), "plain or examples")
        check("method.lr", self.lr, self.lr > 0, "above 0")

    def mismatch(self, local: Solver) -> str:
        plain = isinstance(local, sgd.Solver) and not local.momentum and not local.clip
        if self.option == "II" and not plain:  # the move must be lr times a sum of gradients
            return "with method.option=II needs sgd without momentum and clipping, and with I any point solver"
        return super().mismatch(local)

    def broadcast(self, server: Server) -> tuple[Tensor, ...]:
        return server.theta, server.control

    def init_server(self, task: Task) -> Server:
        return Server(task.initial, torch.zeros_like(task.initial))

    def init_clients(self, count: int, task: Task, local: PointSolver) -> Clients:
        control = torch.zeros(count, task.layout.numel, dtype=task.dtype, device=task.device)
        return Clients(control, local.memory(task, count))

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        count = cohort.num_examples.unsqueeze(1)
        site = gaussian.diagonal.linear(count * (server.control - clients.control))
        fit = local.minimise(cohort, server.theta, clients.solver, site)
        control = self._control(server, clients, cohort, local, fit)
        weight = count if self.weights == "examples" else torch.ones_like(count)
        message: Message = {
            "change": Mean(server.theta - fit.theta, weight=weight.squeeze(1)),
            "control_change": Sum(weight * (control - clients.control)),
        }
        return Clients(control, fit.memory), message

    def _control(self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver, fit: Fit) -> Tensor:
        if self.option == "I":
            return cohort.full_grad(server.theta.expand_as(fit.theta)) / cohort.num_examples.unsqueeze(1)
        plain = local.solver if isinstance(local, Cached) else local
        assert isinstance(plain, sgd.Solver)  # mismatch refuses others
        length = plain.rate(cohort) * fit.steps.to(fit.theta).unsqueeze(1)
        return clients.control - server.control + (server.theta - fit.theta) / length

    def admit(self, server: Server, task: Task) -> Server | None:
        """What it keeps is a mean over, or has a place for, the clients that were there."""
        return None

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        everyone = int(task.num_examples.sum()) if self.weights == "examples" else task.num_clients
        control = server.control + total["control_change"] / everyone
        return Server(server.theta - self.lr * total["change"], control)
