"""FedLap ("Connecting Federated ADMM to Bayes", Eq. 9): PVI with Gaussians of fixed covariance 1/delta.

    client   w_k <- argmin f_k(w) + <v_k, w> + ½ delta |w - w_server|²
             v_k <- v_k + damping delta (w_k - w_server)
    server   w_server <- Σ_k v_k / delta

The paper's v_k is ours over delta. At the fixed point w_server is the pooled minimiser with weight decay delta.
"""

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.exchange.messages import Message, Sum, Totals
from fedddp.methods._sites import check_damping, dual_rate
from fedddp.rounds import method
from fedddp.rounds.method import S
from fedddp.rounds.solver import PointSolver


class Server(NamedTuple):
    theta: Tensor  # [P] the parameters
    duals: Tensor  # [P] sum of the duals of all clients, active or not


class Clients(NamedTuple):
    dual: Tensor  # [C, P] its multiplier
    solver: Any


class Anchored(method.Method[S, Clients], extends=True):
    """What fedlap and fedlap_func share: the settings, and the clients' part in weight space."""

    delta: float = 1.0  # precision of the prior and of each client's Gaussian, above 0
    damping: float | str = "N_k/N"  # the dual's step over delta: a number in (0, 1], 1/K or N_k/N
    warmup: int = 0  # first rounds in which the damping is N_k/N, whatever it says; at least 0

    def __post_init__(self) -> None:
        check("method.delta", self.delta, self.delta > 0, "above 0")
        check_damping(self.damping, self.warmup)

    def init_clients(self, count: int, task: Task, local: PointSolver) -> Clients:
        return Clients(task.initial.new_zeros(count, len(task.initial)), local.memory(task, count))

    def _site(self, anchor: Tensor, clients: Clients) -> Tensor:
        """[C, 2, P] the server's pull minus the client's own dual."""
        shift = self.delta * anchor - clients.dual
        return torch.stack([shift, torch.full_like(shift, self.delta)], dim=-2)

    def _dual_change(self, anchor: Tensor, theta: Tensor, cohort: Cohort) -> Tensor:
        step = self.delta * dual_rate(self.damping, self.warmup, cohort)
        return step.unsqueeze(1) * (theta - anchor)

    def duals(self, clients: Clients) -> Tensor:
        return clients.dual


class Method(Anchored[Server]):
    by_solver: ClassVar[bool] = True

    def forget(self, server: Server, client: Clients, task: Task) -> Server:
        duals = server.duals - client.dual[0]
        return Server(duals / self.delta, duals)

    def init_server(self, task: Task) -> Server:
        nothing = torch.zeros_like(task.initial)
        return Server(nothing, nothing)

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        fit = local.minimise(cohort, begin(server.theta, cohort), clients.solver, self._site(server.theta, clients))
        change = self._dual_change(server.theta, fit.theta, cohort)
        return Clients(clients.dual + change, fit.memory), {"dual_change": Sum(change)}

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        duals = server.duals + total["dual_change"]
        return Server(duals / self.delta, duals)


def begin(anchor: Tensor, cohort: Cohort) -> Tensor:
    """The first round starts at the network's initialisation: at the prior's mean, 0, it would stay symmetric."""
    return cohort.task.initial if cohort.round == 0 else anchor
