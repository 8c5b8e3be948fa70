"""FedProx (Li et al. 2020): federated averaging with a pull towards the server's parameters.

client   theta_k <- solver on f_k(theta) + ½ delta |theta - theta_server|²        (scale = sum)
         theta_k <- solver on f_k(theta)/N_k + ½ delta |theta - theta_server|²    (scale = mean)
server   theta   <- Σ_k N_k theta_k / Σ_k N_k
"""

from fedddp.clients.cohort import Cohort
from fedddp.core import gaussian
from fedddp.core.check import check
from fedddp.exchange.messages import Mean, Message
from fedddp.methods import fedavg
from fedddp.methods._channel import perturb
from fedddp.rounds.method import Clients, Server
from fedddp.rounds.solver import PointSolver


class Method(fedavg.Method):
    delta: float = 0.1  # weight of ½|theta - theta_server|² in a client's problem, at least 0
    scale: str = "sum"  # what the penalty is added to: sum (the loss f_k) or mean (the loss f_k/N_k)

    def __post_init__(self) -> None:
        super().__post_init__()
        check("method.delta", self.delta, self.delta >= 0, "at least 0")
        check("method.scale", self.scale, self.scale in ("sum", "mean"), "sum or mean")

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        site = gaussian.diagonal.natural(server.theta, self.delta)
        if self.scale == "mean":
            site = site * cohort.num_examples.view(-1, 1, 1)
        fit = local.minimise(cohort, server.theta, clients.solver, site)
        theta = perturb(fit.theta, self.noise, cohort, "update")
        return Clients(fit.memory), {"theta": Mean(theta, weight=cohort.num_examples)}
