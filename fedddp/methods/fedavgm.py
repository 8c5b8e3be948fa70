"""FedAvgM (Hsu et al. 2019): federated averaging with momentum at the server.

client   theta_k <- solver on f_k from theta
server   Δ <- Σ_k N_k (theta - theta_k) / Σ_k N_k;   m <- momentum m + Δ;   theta <- theta - lr m
"""

from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.exchange.messages import Totals
from fedddp.methods._server_optimiser import Descent, Server, descend, start


class Method(Descent):
    momentum: float = 0.9  # factor of the last round's direction that is added to the mean change, in [0, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check("method.momentum", self.momentum, 0 <= self.momentum < 1, "in [0, 1)")

    def init_server(self, task: Task) -> Server:
        return Server(task.initial, start(task.initial, "sgd"))

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        return descend(server, total["change"], "sgd", self.lr, self.momentum)
