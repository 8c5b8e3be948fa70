"""FedSEP (Guo et al. 2023): FedEP without client memory; every client's site is taken for the mean of all sites.

    client   cavity   = lam - (lam - lam_0)/K
             lam_k    <- the Gaussian with the moments of exp(-f_k/τ) N(cavity), as in FedEP
    server   lam      <- lam + Σ_k damping (lam_k - lam)

which is stochastic expectation propagation (Li et al. 2015) over clients. With exact moments of Gaussian clients and
damping=1 one round of all clients gives the pooled posterior, and the next changes nothing. Reconstructed from the
definition, as FedEP is.
"""

from fedddp.clients.cohort import Cohort
from fedddp.exchange.messages import Message, Sum
from fedddp.methods._sites import Server
from fedddp.methods.fedep import Tilting
from fedddp.rounds.method import Clients
from fedddp.rounds.solver import Solver


class Method(Tilting[Clients]):
    def client_step(self, server: Server, clients: Clients, cohort: Cohort, local: Solver) -> tuple[Clients, Message]:
        prior = self.init_server(cohort.task).lam
        site = ((server.lam - prior) / cohort.task.num_clients).expand(len(cohort), *prior.shape)
        lam, solver = self.tilted(server.lam, site, clients.solver, cohort, local)
        return Clients(solver), {"dual_change": Sum(self.change(lam, server.lam, cohort))}
