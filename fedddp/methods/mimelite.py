"""MimeLite (Karimireddy et al. 2020b): Mime without the correction of gradients, in one exchange.

    client   theta_k <- local steps along U(∇loss_k(theta_k; batch)), from theta
    server   theta   <- Σ_k N_k theta_k / Σ_k N_k
             m       <- beta1 m + (1 - beta1) c,    s <- as in adam, yogi or adagrad,    c = mean of ∇loss_k(theta)

U is the server's optimiser with its statistics held fixed, as in mime.
"""

from fedddp.clients.cohort import Cohort
from fedddp.core.task import Task
from fedddp.exchange.messages import Mean, Message, Totals
from fedddp.methods import mime
from fedddp.methods.mime import Server, full_gradient
from fedddp.rounds.method import Clients, Phase
from fedddp.rounds.solver import PointSolver


class Method(mime.Method):
    def phase(self, server: Server, index: int) -> Phase | None:
        return Phase(self.client_step, self.server_step, (server.theta, server.moments)) if index == 0 else None

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        steered = cohort.steered(lambda _, grad, batch: self._direction(grad, server.moments))
        fit = local.minimise(steered, server.theta, clients.solver)
        message: Message = {
            "theta": Mean(fit.theta, weight=cohort.num_examples),
            "gradient": full_gradient(server.theta, cohort),
        }
        return Clients(fit.memory), message

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        return super().server_step(self._keep_gradient(server, total, task), total, task)
