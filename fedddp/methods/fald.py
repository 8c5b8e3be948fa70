"""FALD, federated averaging Langevin dynamics (Plassier et al. 2023; Deng et al. 2021), over several chains.

    client   theta_k <- Langevin steps on U_k = f_k/τ + N_k/N ½ delta |theta|² from theta, with noise of its own
    server   theta   <- Σ_k N_k theta_k / N,    a state of a chain that samples exp(-Σ_k U_k)

A step of length lr/N_k on U_k with noise of variance 2 lr/N_k moves the mean by lr/N Σ_k ∇U_k, with noise of variance
2 lr/N: the Langevin step of all data. So local.name=langevin with per_epoch is used, where every client diffuses for
the same time in a round. Several local steps between two means leave a bias where clients differ, which vr_fald has
not; a round in which only some clients take part has more noise than that, N/N_active times.

Predictions are averaged over states of the chains after burn_in rounds; rhat and ess are recorded. The noise is that of
the paper's τ = 0, none of it common to clients. Reconstructed from the definition.
"""

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core import gaussian
from fedddp.core.check import check, check_count
from fedddp.core.task import Task
from fedddp.exchange.messages import Mean, Message, Totals
from fedddp.local import langevin
from fedddp.methods._chains import Chains, begin, diagnostics, extend, samples
from fedddp.methods._layers import initialisations
from fedddp.rounds import method
from fedddp.rounds.method import Clients
from fedddp.rounds.solver import SamplingSolver, Solver


class Server(NamedTuple):
    chains: Chains
    slope: Tensor  # [M, P] control variates, where they are used; empty here

    @property
    def theta(self) -> Tensor:
        """[P] the first chain's state."""
        return self.chains.now[0]


class Method(method.Method[Server, Clients, SamplingSolver]):
    needs: ClassVar[type[Solver]] = SamplingSolver
    undivided: ClassVar[str] = "whose chains are several models, and own layers would belong to none of them"
    delta: float = 1.0  # the prior's precision, at least 0; its mean is 0
    temperature: float = 1.0  # τ: the likelihood is raised to 1/τ, above 0; below 1 the data count more
    chains: int = 2  # Markov chains, each from an initialisation of its own, from 1 to 1,000
    burn_in: int = 0  # first rounds whose states are not used, at least 0
    thin: int = 1  # rounds between two states that are kept for predictions, at least 1
    keep: int = 20  # newest states, of all chains together, that predictions average, from 1 to 10,000

    def __post_init__(self) -> None:
        check("method.delta", self.delta, self.delta >= 0, "at least 0")
        check("method.temperature", self.temperature, self.temperature > 0, "above 0")
        check_count("method.chains", self.chains, most=1000)
        check("method.burn_in", self.burn_in, self.burn_in >= 0, "at least 0")
        check_count("method.thin", self.thin)
        check_count("method.keep", self.keep, most=10_000)

    def mismatch(self, local: Solver) -> str:
        if isinstance(local, langevin.Solver) and local.per_epoch:
            return ""
        return "needs local.name=langevin with local.per_epoch=true, so that all clients diffuse for the same time"

    def init_server(self, task: Task) -> Server:
        return Server(begin(initialisations(task, self.chains), self.keep), task.initial.new_empty(0))

    def broadcast(self, server: Server) -> tuple[Tensor, ...]:
        return (server.chains.now,)

    def models(self, server: Server) -> Tensor:
        return samples(server.chains)

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: SamplingSolver
    ) -> tuple[Clients, Message]:
        rows = torch.arange(len(cohort))
        ends = [self._steps(n, server, clients, cohort.part(rows, n), local) for n in range(self.chains)]
        return clients, {"chains": Mean(torch.stack(ends, 1), weight=cohort.num_examples)}

    def _steps(self, number: int, server: Server, clients: Clients, cohort: Cohort, local: SamplingSolver) -> Tensor:
        """Where Langevin steps on τ U_k at temperature τ lead a chain [C, P], with streams of its own."""
        share = cohort.num_examples / int(cohort.task.num_examples.sum())
        site = gaussian.diagonal.natural(torch.zeros_like(server.theta), self.temperature * self.delta)
        pull = share.view(-1, 1, 1) * site
        start = server.chains.now[number]
        fit, _ = local.sample(cohort, start, clients.solver, pull, gaussian.diagonal, self.temperature)
        return fit.theta

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        return server._replace(chains=extend(server.chains, total["chains"], self.burn_in, self.thin))

    def metrics(self, before: Server, after: Server, total: Totals) -> dict[str, float]:
        return diagnostics(after.chains)
