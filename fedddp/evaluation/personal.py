"""Personal models: a few local steps from the server with its posterior as the prior (evaluation.personal).

    q_k     <- argmin E_q[f_k] + KL(q || q_server)              a posterior and a solver that fits one
    theta_k <- solver on f_k + energy(q_server) from theta      a posterior and a point solver
    theta_k <- solver on f_k from theta                         no posterior
    q_k     <- (1 - share) lam_server + share lam_k             personal_share < 1: see gaussian.towards

For any method and all clients, also those that never train; only the evaluation sees what comes of it. The solver is
the run's own with other epochs, a constant learning rate and fresh memory. Cohorts are formed of all clients by the
same rule on any number of ranks, so the bits are the same.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core.gaussian import diagonal, family_of, towards
from fedddp.core.rng import key
from fedddp.core.task import Task
from fedddp.rounds.federate import Federation
from fedddp.rounds.iterative import Iterative
from fedddp.rounds.plan import Plan
from fedddp.rounds.solver import PointSolver, PosteriorSolver, Solver


@dataclass(frozen=True)
class Personal:
    """What a client makes of the server's model by itself."""

    local: Solver
    share: float = 1.0

    @classmethod
    def of(cls, local: Solver, epochs: int, share: float) -> "Personal":
        if isinstance(local, Iterative):
            local = replace(local, epochs=epochs, schedule="constant")
        if isinstance(local, PosteriorSolver) and not local.any_cavity:
            raise ValueError("evaluation.personal: this solver takes a prior N(0, 1/delta) only; choose local=ivon")
        return cls(local, share)

    def fits(self, lam: Tensor | None) -> bool:
        """Whether a client has a posterior of its own."""
        return lam is not None and isinstance(self.local, PosteriorSolver)

    def fit(self, cohort: Cohort, theta: Tensor, lam: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """theta [C, P], and natural parameters [C, ...] where the solver fits them."""
        memory = self.local.memory(cohort.task, len(cohort))
        if lam is not None and isinstance(self.local, PosteriorSolver):
            family = family_of(lam)
            prior = lam.expand(len(cohort), *lam.shape).clone()
            found = self.local.fit(cohort, prior, 1.0, lam, memory, family).lam
            moved = towards(lam, found, self.share)
            return family.mean(moved), moved
        assert isinstance(self.local, PointSolver)
        family = diagonal if lam is None else family_of(lam)
        return self.local.minimise(cohort, theta, memory, lam, family).theta, None

    def models(self, federation: Federation, server: Any, finished: int) -> Iterator[tuple[int, Tensor, Tensor | None]]:
        """(client, theta [P], lam or None) of this rank's share of all clients."""
        task = whole(federation.task)
        plan = Plan.make(task.num_examples, federation.plan.width, 1.0, federation.exchange.world_size)
        lam = federation.method.posterior(server)
        for assigned in plan.cohorts(torch.arange(task.num_clients), memory=False):
            if assigned.rank == federation.exchange.rank:
                cohort = Cohort(assigned.ids, finished, task, federation.oracle)
                with torch.no_grad():
                    theta, own = self.fit(cohort, server.theta, lam)
                for row, client in enumerate(assigned.ids):
                    yield client, theta[row], None if own is None else own[row]


def whole(task: Task) -> Task:
    """With all clients as clients to train, and streams of their own."""
    streams = replace(task.streams, seed=key(task.streams.seed, "personal"))
    return replace(task, shards=task.everyone, streams=streams)
