"""MimeLite (Karimireddy et al. 2020b): Mime without the correction of gradients, in one exchange.

    client   theta_k <- local steps along U(∇loss_k(theta_k; batch)), from theta
    server   theta   <- Σ_k N_k theta_k / Σ_k N_k
             m       <- beta1 m + (1 - beta1) c,    s <- as in adam, yogi or adagrad,    c = mean of ∇loss_k(theta)

U is the server's optimiser with its statistics held fixed, as in mime.
"""

from dataclasses import dataclass

from fedddp.cohort import Cohort
from fedddp.local import Point
from fedddp.methods import Phase, mime
from fedddp.methods.fedavg import Clients
from fedddp.methods.mime import Server, full_gradient, steer
from fedddp.reduce import Mean, Message, Totals
from fedddp.task import Task


@dataclass
class Method(mime.Method):
    def phase(self, server: Server, index: int) -> Phase | None:
        return Phase(self.client_step, self.server_step, ("theta", "moments")) if index == 0 else None

    def client_step(self, server: Server, clients: Clients, cohort: Cohort, local: Point) -> tuple[Clients, Message]:
        steered = steer(cohort, lambda grad, _: self.direction(grad, server.moments))
        fit = local.minimise(steered, server.theta, clients.solver)
        message: Message = {
            "theta": Mean(fit.theta, weight=cohort.num_examples),
            "gradient": full_gradient(server.theta, cohort),
        }
        return Clients(fit.memory), message

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        return super().server_step(self.keep_gradient(server, total, task), total, task)
