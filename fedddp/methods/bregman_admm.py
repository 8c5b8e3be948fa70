"""BregmanADMM (Wang & Banerjee 2014; as in "Federated ADMM from Bayesian Duality", App. F): duals step on mu, not lam.

    client   q_k as in bayes_admm
             v_k <- v_k + rho (m_k - m),    u_k <- u_k - 2 rho (m_k² + 1/s_k - m² - 1/s)
    server   as in bayes_admm, but told of the duals' changes, which the mean of lam_k does not tell

The multiplier of mu = (m, m² + 1/s) is (v, -½u). Fixed points are those of bayes_admm, the way there is longer. The
authors' program has the other sign and no factor, u_k <- u_k + rho Δ(m² + 1/s): sign = released.
"""

from typing import ClassVar

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.exchange.messages import Message, Sum, Totals
from fedddp.methods import bayes_admm
from fedddp.methods._sites import Clients, Server
from fedddp.rounds.solver import PosteriorSolver

SIGNS = {"lagrangian": 4.0, "released": -2.0}  # of u's step, in units of Δ(-½(m² + 1/s))


class Method(bayes_admm.Method):
    by_solver: ClassVar[bool] = True
    clips: ClassVar[str] = ""  # a dual's change does not follow from lam's
    sign: str = "lagrangian"  # lagrangian, or released: the dual's step as in the authors' program (see above)

    def __post_init__(self) -> None:
        super().__post_init__()
        check("method.sign", self.sign, self.sign in SIGNS, " or ".join(SIGNS))

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PosteriorSolver
    ) -> tuple[Clients, Message]:
        after, message = super().client_step(server, clients, cohort, local)
        change = self._dual_change(message["lam"].value, server.lam)
        return after, {"lam": message["lam"], "dual_change": Sum(change)}

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        return self._mix(total["lam"], server.sites + total["dual_change"], task)

    def _dual_change(self, lam: Tensor, anchor: Tensor) -> Tensor:
        """Our mu has -½(m² + 1/s) in its second part, where u belongs: -2·Δ(m² + 1/s) = 4·Δ(-½(m² + 1/s))."""
        moved = self.family.expectation(lam) - self.family.expectation(anchor)
        weight = torch.full_like(moved[0], SIGNS[self.sign])
        self.family.shift(weight).fill_(1.0)
        return self._step * weight * moved
