"""FedEP (Guo et al. 2023): federated expectation propagation, with moments of each client's true tilted distribution.

    client   tilted_k ∝ exp(-f_k/τ) N(cavity_k),    cavity_k = lam - dual_k
             lam_k    <- the Gaussian with the tilted moments: of samples, by Laplace, or by natural-gradient VI
             dual_k   <- dual_k + damping (lam_k - lam)
    server   lam      <- lam_0 + Σ_k dual_k

The solver says how the moments are found: a sampling solver (langevin, iasg) gives the true ones up to their noise, a
posterior solver its own approximation (laplace, ivon, von), with which this is PVI. With exact moments of Gaussian
clients and damping=1 one round gives the pooled posterior, for any prior.

The covariance of ℓ samples is taken together with the server's, which stands for the samples of t rounds before and
for `pseudo_samples` w more: it counts as w + t (ℓ - 1). One sample alone moves the mean only. Without t the run
diverges: a path of a few epochs is narrower than what it samples, so the precision can grow by (w + ℓ - 1)/w in a round
though the data say nothing (digits, w=1: no precision left in round 54; w=100: within 300 rounds). So it grows by no
more than 1 + T (ℓ - 1)/w in T rounds, as a step that falls as 1/t would have it.

Reconstructed from the definition of expectation propagation with a Gaussian prior; the paper's prior is flat, and its
shrinkage of sampled covariances may be another one.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core import gaussian
from fedddp.core.check import check
from fedddp.core.gaussian import Family
from fedddp.core.task import Task
from fedddp.exchange.messages import Message, Sum, Totals
from fedddp.methods._sites import Clients, Server, SiteMethod, check_damping, dual_rate, taken_out
from fedddp.rounds.method import C
from fedddp.rounds.solver import PosteriorFit, PosteriorSolver, Samples, SamplingSolver, Solver


class Tilting(SiteMethod[C], extends=True):
    """What FedEP and FedSEP share: settings, and the moments of a client's tilted distribution."""

    needs: ClassVar[type[Solver]] = Solver
    damping: float | str = "1/K"  # the step of a client's site: a number in (0, 1], 1/K or N_k/N
    warmup: int = 0  # first rounds in which it is N_k/N, whatever damping says
    pseudo_samples: float = 1.0  # samples that the first covariance counts as beside a client's own; at least 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_damping(self.damping, self.warmup)
        check("method.pseudo_samples", self.pseudo_samples, self.pseudo_samples >= 0, "at least 0")

    def mismatch(self, local: Solver) -> str:
        if isinstance(local, PosteriorSolver):
            wrong = "" if local.any_cavity else "has sites, and that solver takes a prior N(0, 1/delta) only"
            return wrong or super().mismatch(local)
        if not isinstance(local, SamplingSolver):
            return "needs a sampling or a posterior solver"
        if self.temperature != 1 and not local.tempers:
            return "has method.temperature, which that solver's samples do not follow: use local.name=langevin"
        return ""

    def tilted(self, lam: Tensor, dual: Tensor, memory: Any, cohort: Cohort, local: Solver) -> tuple[Tensor, Any]:
        """lam_k [C, ...] with the tilted moments, and the solver's memory."""
        cavity, start = self.temperature * (lam - dual), self.start(lam, cohort)
        if isinstance(local, PosteriorSolver):
            return self.proper(local.fit(cohort, cavity, self.temperature, start, memory, self.family))
        assert isinstance(local, SamplingSolver)  # as mismatch says
        isotropic = self.family is gaussian.isotropic
        site, family = (gaussian.as_diagonal(cavity), gaussian.diagonal) if isotropic else (cavity, self.family)
        fit, samples = local.sample(cohort, self.family.mean(start), memory, site, family, self.temperature)
        found = moments(samples, lam, self.family, self.pseudo_samples, cohort.round)
        return self.proper(PosteriorFit(found, fit.memory, fit.steps))

    def change(self, lam: Tensor, anchor: Tensor, cohort: Cohort) -> Tensor:
        """Of each client's site."""
        step = dual_rate(self.damping, self.warmup, cohort)
        return step.view(-1, *[1] * (lam.dim() - 1)) * (lam - anchor)

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        sites = server.sites + total["dual_change"]
        return Server(sites, sites)


class Method(Tilting[Clients]):
    def init_clients(self, count: int, task: Task, local: Solver) -> Clients:
        prior = self.init_server(task).lam
        return Clients(prior.new_zeros(count, *prior.shape), local.memory(task, count))

    def forget(self, server: Server, client: Clients, task: Task) -> Server:
        return taken_out(server, client.dual)

    def duals(self, clients: Clients) -> Tensor:
        return clients.dual

    def client_step(self, server: Server, clients: Clients, cohort: Cohort, local: Solver) -> tuple[Clients, Message]:
        lam, solver = self.tilted(server.lam, clients.dual, clients.solver, cohort, local)
        change = self.change(lam, server.lam, cohort)
        return Clients(clients.dual + change, solver), {"dual_change": Sum(change)}


def moments(samples: Samples, lam: Tensor, family: Family, weight: float, rounds: int = 0) -> Tensor:
    """lam_k [C, ...] with the mean of each client's samples and a covariance of them and of lam's.

    The latter counts as `weight` samples, and as the client's own in each of so many rounds before.
    """
    rows = []
    for made, own in zip(samples.theta, samples.own.tolist(), strict=True):
        drawn = made[:own]
        mean = drawn.mean(0)
        share = (own - 1) / (weight + (rounds + 1) * (own - 1)) if own > 1 else 0.0
        base = gaussian.inverse(family, family.precision(lam))
        if share:
            base = torch.lerp(base, _scatter(drawn - mean, family) / (own - 1), share)
        rows.append(family.natural(mean, gaussian.inverse(family, base)))
    return torch.stack(rows) if rows else lam.new_zeros(0, *lam.shape)


def _scatter(around: Tensor, family: Family) -> Tensor:
    """Σ (x - mean)(x - mean)ᵀ of samples [ℓ, P], as far as a family holds it."""
    if family is gaussian.full:
        return around.T @ around
    each = around.square().sum(0)
    return each.mean(0, keepdim=True) if family is gaussian.isotropic else each
