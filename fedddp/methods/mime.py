"""Mime (Karimireddy et al. 2020b): every local step mimics a step of the server's optimiser on all data.

    phase 1  c       <- Σ_k N_k ∇loss_k(theta) / Σ_k N_k
    phase 2  theta_k <- local steps along U(∇loss_k(theta_k; batch) - ∇loss_k(theta; batch) + c), from theta
             theta   <- Σ_k N_k theta_k / Σ_k N_k
             m       <- beta1 m + (1 - beta1) c,    s <- as in adam, yogi or adagrad

    U(g) = (1 - beta1) g + beta1 m,    over √s + tau for the adaptive rules

The server's statistics m and s stay fixed during the local steps. The solver is plain SGD on a cohort whose
gradients are turned into such directions.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Batch, Cohort
from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.exchange.messages import Mean, Message, Totals
from fedddp.local import sgd
from fedddp.methods._server_optimiser import RULES, SECOND, Moments, remember, start
from fedddp.rounds import method
from fedddp.rounds.method import Clients, Phase
from fedddp.rounds.solver import PointSolver, Solver


class Server(NamedTuple):
    theta: Tensor  # [P] the parameters
    gradient: Tensor  # [P] c, of this round's clients
    moments: Moments


class Method(method.Method[Server, Clients]):
    optimiser: str = "sgd"  # whose steps are mimicked: sgd, adam, yogi or adagrad
    momentum: float = 0.9  # of the optimiser sgd, and beta1 of the others, in [0, 1)
    beta2: float = 0.99  # how slowly the mean of squares of adam and yogi forgets, in [0, 1)
    tau: float = 1e-3  # added to the root of the squares by adam, yogi and adagrad, above 0

    def __post_init__(self) -> None:
        check("method.optimiser", self.optimiser, self.optimiser in RULES, " or ".join(RULES))
        check("method.momentum", self.momentum, 0 <= self.momentum < 1, "in [0, 1)")
        check("method.beta2", self.beta2, 0 <= self.beta2 < 1, "in [0, 1)")
        check("method.tau", self.tau, self.tau > 0, "above 0")

    def init_server(self, task: Task) -> Server:
        return Server(task.initial, torch.zeros_like(task.initial), start(task.initial, self.optimiser, self.tau))

    def mismatch(self, local: Solver) -> str:
        plain = isinstance(local, sgd.Solver) and not local.momentum
        return "" if plain else "needs sgd without momentum, which is the server's"

    def phase(self, server: Server, index: int) -> Phase | None:
        phases = [
            Phase(self._gradient_step, self._keep_gradient, (server.theta,)),
            Phase(self.client_step, self.server_step, (server.gradient, server.moments)),
        ]
        return phases[index] if index < len(phases) else None

    def _gradient_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        return clients, {"gradient": full_gradient(server.theta, cohort)}

    def _keep_gradient(self, server: Server, total: Totals, task: Task) -> Server:
        return server._replace(gradient=total["gradient"])

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        def turn(_: Tensor, grad: Tensor, batch: Batch) -> Tensor:
            there, _ = cohort.oracle(server.theta.expand_as(grad), *batch)
            return self._direction(grad - there + server.gradient, server.moments)

        fit = local.minimise(cohort.steered(turn), server.theta, clients.solver)
        return Clients(fit.memory), {"theta": Mean(fit.theta, weight=cohort.num_examples)}

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        moments = remember(server.moments, server.gradient, self.optimiser, self.momentum, self.beta2)
        return Server(total["theta"], server.gradient, moments)

    def _direction(self, gradient: Tensor, moments: Moments) -> Tensor:
        """The optimiser's step U, with its statistics as they are."""
        first = (1 - self.momentum) * gradient + self.momentum * moments.first
        return first / (moments.second.sqrt() + self.tau) if self.optimiser in SECOND else first


def full_gradient(theta: Tensor, cohort: Cohort) -> Mean:
    """The gradient of all active clients' mean loss over all of their examples."""
    count = cohort.num_examples
    return Mean(cohort.full_grad(theta.expand(len(cohort), -1)) / count.unsqueeze(1), weight=count)
