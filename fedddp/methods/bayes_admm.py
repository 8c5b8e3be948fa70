"""BayesADMM ("Federated ADMM from Bayesian Duality", Fig. 2b, Alg. 1 and App. C.4, D).

    client   q_k    <- argmin E_q[f_k/τ + <dual_k, T(theta)>] + rho KL(q || q_server)
             dual_k <- dual_k + damping rho (lam_k - lam)
    server   lam    <- (1 - alpha) Mean_k lam_k + alpha (lam_0 + Σ_k dual_k),    alpha = 1/(1 + rho K)

Alg. 1 prints the dual's step γ without rho; `dual_step` is that γ, free of rho, and takes damping x rho's place.
With covariance=diagonal and the solver ivon this is Alg. 1; with full and von, App. C.4. On conjugate problems with
rho = 1/K it is done after one round. With alpha=1 and rho=1 it is damped PVI.
"""

from typing import ClassVar

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.exchange.messages import Mean, Message, Sum, Totals
from fedddp.methods._sites import Clients, DualMethod, Server
from fedddp.rounds.solver import PosteriorSolver


class Method(DualMethod):
    by_solver: ClassVar[bool] = True
    clips: ClassVar[str] = "lam"
    rho: float = 0.1  # weight of the KL divergence to the server's posterior in a client's problem, above 0
    damping: float = 1.0  # the dual's step is damping x rho, in (0, 1]
    dual_step: float = 0.0  # γ of Alg. 1, a step of the dual's own, above 0; 0: damping x rho
    alpha: float = 0.0  # weight of the sites in the server's step, in (0, 1]; 0: 1/(1 + rho K)

    def __post_init__(self) -> None:
        super().__post_init__()
        check("method.rho", self.rho, self.rho > 0, "above 0")
        check("method.damping", self.damping, 0 < self.damping <= 1, "in (0, 1]")
        fine = self.dual_step >= 0 and (self.dual_step == 0 or self.damping == 1)
        check("method.dual_step", self.dual_step, fine, "above 0 with method.damping=1, or 0 for damping x rho")
        check("method.alpha", self.alpha, 0 <= self.alpha <= 1, "in (0, 1], or 0 for 1/(1 + rho K)")

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PosteriorSolver
    ) -> tuple[Clients, Message]:
        lam, solver = self.fit(server, clients, cohort, local, self.rho)
        dual = clients.dual + self._dual_change(lam, server.lam)
        return Clients(dual, solver), {"lam": Mean(lam), "clients": Sum(torch.ones_like(cohort.num_examples))}

    @property
    def _step(self) -> float:
        """Of a dual."""
        return self.dual_step or self.damping * self.rho

    def _dual_change(self, lam: Tensor, anchor: Tensor) -> Tensor:
        return (lam - anchor).mul_(self._step)

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        """A dual's change is linear in lam_k, so the mean tells the sum of all changes and they need not be sent."""
        change = total["clients"] * self._dual_change(total["lam"], server.lam)
        return self._mix(total["lam"], server.sites + change, task)

    def _mix(self, mean: Tensor, sites: Tensor, task: Task) -> Server:
        alpha = self.alpha or 1 / (1 + self.rho * task.num_clients)
        return Server((1 - alpha) * mean + alpha * sites, sites)

    def base(self, server: Server) -> Tensor:
        return server.lam

    def remember(self, clients: Clients, own: Clients, change: Tensor) -> Clients:
        return own._replace(dual=clients.dual + change * self._step)

    def noisy(self, server: Server, change: Tensor, clients: float) -> Totals:
        """The count is the expected one: who took part is not told, and the duals' changes add up all the same."""
        return {"lam": server.lam + change / clients, "clients": change.new_tensor(clients)}
