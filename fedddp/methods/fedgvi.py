"""FedGVI (Mildner et al. 2025): partitioned variational inference with a robust loss and another divergence.

    client   q_k    <- argmin E_q[L_k/τ] + D(q || cavity_k),    cavity_k = lam - dual_k
             dual_k <- dual_k + damping (lam_k - lam)
    server   lam    <- lam_0 + Σ_k dual_k

L_k is a sum of losses of fedddp/methods/_robust.py; D is the Kullback-Leibler divergence or Rényi's of order alpha < 1,

    D(q || c) = α/2 (m - m_c)ᵀ V_α⁻¹ (m - m_c) + log(|V_α| / |V|^(1-α) |V_c|^α) / (2 (1 - α)),    V_α = (1-α) V + α V_c

Its gradient at a Gaussian q is that of KL(q || c') for a Gaussian factor c', by which a client's problem is solved with
c' at the server's q. At a fixed point all q_k are that q, so it is one of the method with D itself. With loss=log and
alpha=1 this is pvi. The server's divergence is KL. Reconstructed from the definition.
"""

from typing import Any

from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core import gaussian
from fedddp.core.check import check
from fedddp.core.gaussian import Family
from fedddp.core.objective import Objective
from fedddp.local import ivon
from fedddp.methods import pvi
from fedddp.methods._barycentre import square
from fedddp.methods._robust import LOSSES, robust
from fedddp.methods._sites import Clients, Server
from fedddp.rounds.solver import PosteriorSolver, Solver


class Method(pvi.Method):
    loss: str = "generalised_cross_entropy"  # log, generalised_cross_entropy or density_power
    strength: float = 0.5  # q or β of the robust loss, in (0, 1]: more looks away from more examples
    alpha: float = 1.0  # order of Rényi's divergence from the cavity, in (0, 1]; 1: Kullback-Leibler

    def __post_init__(self) -> None:
        super().__post_init__()
        check("method.loss", self.loss, self.loss in LOSSES, " or ".join(LOSSES))
        check("method.strength", self.strength, 0 < self.strength <= 1, "in (0, 1]")
        check("method.alpha", self.alpha, 0 < self.alpha <= 1, "in (0, 1]")

    def mismatch(self, local: Solver) -> str:
        if self.loss != "log" and not isinstance(local, ivon.Solver):
            return "has method.loss, which only solvers that ask for gradients alone see: use local.name=ivon"
        return super().mismatch(local)

    def objective(self, plain: Objective) -> Objective:
        return robust(plain, self.loss, self.strength)

    def fit(
        self, server: Server, clients: Clients, cohort: Cohort, local: PosteriorSolver, rho: float
    ) -> tuple[Tensor, Any]:
        """As pvi's, with the cavity's stand-in in its place."""
        if self.alpha == 1:
            return super().fit(server, clients, cohort, local, rho)
        cavity = server.lam - clients.dual
        bad = int((self.family.improper(cavity) > 0).sum())
        if bad:
            raise ValueError(
                f"method.alpha={self.alpha}: {bad} clients' cavities are improper; a smaller method.damping"
            )
        stand_in = renyi_cavity(server.lam, cavity, self.alpha, self.family)
        return super().fit(server, clients._replace(dual=server.lam - stand_in), cohort, local, rho)


def renyi_cavity(lam: Tensor, cavity: Tensor, alpha: float, family: Family) -> Tensor:
    """The factor c' with ∇ KL(q || c') = ∇ D_α(q || cavity) at q = lam, for each cavity [C, ...].

    precision'  = V_α⁻¹ - α (1-α) (V_α⁻¹ d)(V_α⁻¹ d)ᵀ,    shift' = precision' m - α V_α⁻¹ d,    d = m - m_c
    """
    mean, own = family.mean(lam), gaussian.inverse(family, family.precision(lam))
    other = gaussian.inverse(family, family.precision(cavity))
    between = gaussian.inverse(family, (1 - alpha) * own + alpha * other)
    slope = _times(family, between, mean - family.mean(cavity))
    precision = between - alpha * (1 - alpha) * square(family, slope)
    flat = family.linear(alpha * slope)
    return flat + family.natural(mean.expand_as(slope), precision)


def _times(family: Family, matrix: Tensor, vector: Tensor) -> Tensor:
    return (matrix @ vector.unsqueeze(-1)).squeeze(-1) if family is gaussian.full else matrix * vector
