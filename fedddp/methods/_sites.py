"""What the methods on natural parameters share: a Gaussian at the server, a likelihood site at each client.

    client   q_k <- argmin E_q[f_k/τ + <dual_k, T(theta)>] + rho KL(q || q_server)
                  = argmin E_q[f_k + energy(cavity)] + τ rho E_q[log q],    cavity = τ (rho lam_server - dual_k)

`dual_k` has the layout of natural parameters and the sign of a likelihood site, so lam_server = lam_0 + Σ_k dual_k at
a fixed point. The server keeps that total by the changes of active clients.
"""

from dataclasses import fields
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core import gaussian, registry
from fedddp.core.check import check
from fedddp.core.gaussian import FAMILIES, Family
from fedddp.core.task import Task
from fedddp.rounds import method
from fedddp.rounds.method import C
from fedddp.rounds.solver import PosteriorFit, PosteriorSolver, Solver


class Server(NamedTuple):
    lam: Tensor  # the posterior's natural parameters
    sites: Tensor  # lam_0 + the sum of the duals of all clients, active or not

    @property
    def theta(self) -> Tensor:
        """[P] the mean, which is what a point prediction uses."""
        return gaussian.family_of(self.lam).mean(self.lam)


class Clients(NamedTuple):
    dual: Tensor  # [C, ...] natural parameters of its site
    solver: Any


class SiteMethod(method.Method[Server, C, PosteriorSolver], extends=True):
    """What every method on natural parameters shares; `covariance` is the family of its Gaussians."""

    needs: ClassVar[type[Solver]] = PosteriorSolver
    delta: float = 1.0  # the prior's precision, above 0; its mean is 0
    temperature: float = 1.0  # τ: the likelihood is raised to 1/τ, above 0; below 1 the data count more
    covariance: str = "diagonal"  # family of the Gaussians: diagonal, isotropic or full

    def __post_init__(self) -> None:
        check("method.delta", self.delta, self.delta > 0, "above 0")
        check("method.temperature", self.temperature, self.temperature > 0, "above 0")
        check("method.covariance", self.covariance, self.covariance in FAMILIES, " or ".join(FAMILIES))

    @property
    def family(self) -> Family:
        return FAMILIES[self.covariance]

    def init_server(self, task: Task) -> Server:
        prior = self.family.natural(torch.zeros_like(task.initial), self.delta)
        return Server(prior, prior)

    def mismatch(self, local: Solver) -> str:
        if not isinstance(local, PosteriorSolver) or self.covariance in local.families:
            return super().mismatch(local)
        return f"has method.covariance={self.covariance}, and that solver fits {' or '.join(local.families)} Gaussians"

    def broadcast(self, server: Server) -> tuple[Any, ...]:
        return (server.lam,)

    def posterior(self, server: Server) -> Tensor:
        return server.lam

    def start(self, lam: Tensor, cohort: Cohort) -> Tensor:
        """Where a solver begins: a network started at the prior's mean, 0, would never break its symmetry."""
        if cohort.round:
            return lam
        return self.family.natural(cohort.task.initial, self.family.precision(lam))

    def proper(self, found: PosteriorFit) -> tuple[Tensor, Any]:
        """What a solver found, if it is a posterior."""
        bad = int(self.family.improper(found.lam).sum())
        if bad and bool(found.lam.isfinite().all()):  # what is not finite, the engine reports
            name = registry.name_of(self)
            raise ValueError(f"{name}: {bad} precisions of the client's posterior are not positive: {self._remedy}")
        return found.lam, found.memory

    def mend(self, server: Server) -> Server:
        """No precision below the prior's, as where likelihoods are log-concave; the sites stay as they were summed."""
        return server._replace(lam=self.family.floored(server.lam, self.delta))

    def improper(self, server: Server) -> str:
        """What is wrong with the server's posterior, if anything; the engine adds the method and the round."""
        bad = int(self.family.improper(server.lam).sum())
        return f"{bad} precisions of the server's posterior are not positive: {self._remedy}" if bad else ""

    @property
    def _remedy(self) -> str:
        damped = any(setting.name == "damping" for setting in fields(self))  # type: ignore[arg-type]
        return f"{'a smaller method.damping or ' if damped else ''}a larger method.delta helps"


class DualMethod(SiteMethod[Clients], extends=True):
    """Whose clients keep a dual beside what their solver remembers."""

    def mismatch(self, local: Solver) -> str:
        if isinstance(local, PosteriorSolver) and not local.any_cavity:
            return "has duals, and that solver takes a prior N(0, 1/delta) only"
        return super().mismatch(local)

    def init_clients(self, count: int, task: Task, local: PosteriorSolver) -> Clients:
        prior = self.init_server(task).lam
        return Clients(prior.new_zeros(count, *prior.shape), local.memory(task, count))

    def duals(self, clients: Clients) -> Tensor:
        return clients.dual

    def forget(self, server: Server, client: Clients, task: Task) -> Server:
        return taken_out(server, client.dual)

    def fit(
        self, server: Server, clients: Clients, cohort: Cohort, local: PosteriorSolver, rho: float
    ) -> tuple[Tensor, Any]:
        """lam [C, ...] of q_k, and the solver's memory."""
        found = local.fit(
            cohort,
            (rho * server.lam - clients.dual).mul_(self.temperature),  # the solver's alone, which may let it go
            self.temperature * rho,
            self.start(server.lam, cohort),
            clients.solver,
            self.family,
        )
        return self.proper(found)


def taken_out(server: Server, dual: Tensor) -> Server:
    """Without the site of a client, dual [1, ...]: exact where lam is the sum of the prior and all sites."""
    return Server(server.lam - dual[0], server.sites - dual[0])


def dual_rate(damping: float | str, warmup: int, cohort: Cohort) -> Tensor:
    """[C] the step of each client's dual: a number, 1/K, or N_k/N, which it also is in the first `warmup` rounds."""
    task = cohort.task
    if damping == "N_k/N" or cohort.round < warmup:
        return cohort.num_examples / int(task.num_examples.sum())
    step = 1 / task.num_clients if damping == "1/K" else float(damping)
    return torch.full_like(cohort.num_examples, step)


def check_damping(damping: float | str, warmup: int) -> None:
    fine = damping in ("1/K", "N_k/N") if isinstance(damping, str) else 0 < damping <= 1
    check("method.damping", damping, fine, "a number in (0, 1], 1/K or N_k/N")
    check("method.warmup", warmup, warmup >= 0, "at least 0")
