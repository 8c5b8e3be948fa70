"""ADMM with a fixed covariance ("Federated ADMM from Bayesian Duality", Table 3, Eq. 11 and App. C.2).

BayesADMM over Gaussians N(m, S⁻¹) whose diagonal precision S stays as it is:

    client   m_k <- argmin E_{N(m, S⁻¹)}[f_k] + <v_k, m> + ½ rho |m - m_server|²_S
             v_k <- v_k + rho S (m_k - m_server)
    server   m   <- (1 - alpha) Mean_k m_k + (alpha/delta) Σ_k v_k,    alpha = delta/(delta + rho K S)

expectation=delta takes the gradient at m (the delta approximation), sampled at a draw of N(m, S⁻¹), one for each step:
the loss is smoothed. With S = 1 and delta this is federated_admm, iterate by iterate; S changes the way and not the
fixed point, the pooled minimiser with weight decay delta. With scaling=curvature S is measured once, in an exchange
of its own before the first round's: the diagonal GGN of all active clients at the network's initialisation.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.clients.curvature import ggn_diag
from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.exchange.messages import Mean, Message, Sum, Totals
from fedddp.methods.federated_admm import Clients, admm_step, primal
from fedddp.rounds import method
from fedddp.rounds.method import Phase
from fedddp.rounds.solver import PointSolver


class Server(NamedTuple):
    theta: Tensor  # [P] the parameters
    duals: Tensor  # [P] sum of the duals of all clients, active or not
    precision: Tensor  # [P] S, fixed once it is measured
    rounds: Tensor  # [] that are over; on the host, which decides by it whether S is still to be measured


class Method(method.Method[Server, Clients]):
    rho: float = 0.1  # weight of ½|theta - theta_server|² in a client's problem over S, above 0
    delta: float = 1.0  # the prior's precision: weight of ½|theta|² beside the sum of all losses, above 0
    alpha: float = 0.0  # weight of the duals in the server's step, in (0, 1]; 1: AMA; 0: delta/(delta + rho K S)
    precision: float = 1.0  # mean of S over the parameters, above 0
    scaling: str = "one"  # S: one (the same everywhere) or curvature (like the diagonal GGN at the initialisation)
    floor: float = 0.01  # least of S beside its mean, in (0, 1]
    expectation: str = "delta"  # of the loss: delta (at the mean) or sampled (at a draw of N(m, 1/S) in each step)

    def __post_init__(self) -> None:
        check("method.rho", self.rho, self.rho > 0, "above 0")
        check("method.delta", self.delta, self.delta > 0, "above 0")
        check("method.alpha", self.alpha, 0 <= self.alpha <= 1, "in (0, 1], or 0 for delta/(delta + rho K S)")
        check("method.precision", self.precision, self.precision > 0, "above 0")
        check("method.scaling", self.scaling, self.scaling in ("one", "curvature"), "one or curvature")
        check("method.floor", self.floor, 0 < self.floor <= 1, "in (0, 1]")
        check("method.expectation", self.expectation, self.expectation in ("delta", "sampled"), "delta or sampled")

    def init_server(self, task: Task) -> Server:
        start = torch.full_like(task.initial, self.precision)
        return Server(task.initial, torch.zeros_like(task.initial), start, torch.zeros((), dtype=torch.int64))

    def init_clients(self, count: int, task: Task, local: PointSolver) -> Clients:
        return Clients(task.initial.new_zeros(count, task.layout.numel), local.memory(task, count))

    def phase(self, server: Server, index: int) -> Phase | None:
        step = Phase(self.client_step, self.server_step, (server.theta,))
        if self.scaling == "one" or int(server.rounds):
            return step if index == 0 else None
        return (Phase(self._look, self._measure, (server.theta,)), step, None)[min(index, 2)]

    def _look(self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver) -> tuple[Clients, Message]:
        theta = cohort.task.initial.expand(len(cohort), -1)
        return clients, {"curvature": Sum(ggn_diag(cohort, theta))}

    def _measure(self, server: Server, total: Totals, task: Task) -> Server:
        curvature = total["curvature"]
        relative = (curvature / curvature.mean()).clamp_min(self.floor)
        return server._replace(precision=self.precision * relative)

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        smoothed = cohort.drawn(_Draw(cohort, server.precision)) if self.expectation == "sampled" else cohort
        rho = self.rho * server.precision
        theta, change, solver = admm_step(server.theta, clients, smoothed, local, rho)
        message: Message = {"theta": Mean(theta), "dual_change": Sum(change), "primal": primal(theta, server.theta)}
        return Clients(clients.dual + change, solver), message

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        duals = server.duals + total["dual_change"]
        own = self.delta / (self.delta + self.rho * task.num_clients * server.precision)
        alpha = torch.full_like(own, self.alpha) if self.alpha else own
        theta = (1 - alpha) * total["theta"] + alpha / self.delta * duals
        return Server(theta, duals, server.precision, server.rounds + 1)

    def forget(self, server: Server, client: Clients, task: Task) -> Server:
        """The dual is taken out; the parameters follow in later rounds."""
        return server._replace(duals=server.duals - client.dual[0])

    def duals(self, clients: Clients) -> Tensor:
        return clients.dual

    def metrics(self, before: Server, after: Server, total: Totals) -> dict[str, float]:
        """How far clients are from the server, and how far the server moved times rho S; none of the measuring."""
        if "primal" not in total:
            return {}
        moved = self.rho * before.precision * (after.theta - before.theta)
        return {"primal_residual": float(total["primal"].sqrt()), "dual_residual": float(moved.norm())}


class _Draw:
    """Points around theta with the precision S; another draw at every call, each client's from its own stream."""

    def __init__(self, cohort: Cohort, precision: Tensor) -> None:
        self.noise, self.deviation = cohort.noise("expectation"), precision.rsqrt()

    def __call__(self, theta: Tensor) -> Tensor:
        return theta + self.noise.fill(torch.empty_like(theta)) * self.deviation
