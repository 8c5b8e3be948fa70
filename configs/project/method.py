"""A method: what a client keeps, what it does and sends, and what the server makes of the sum."""

from typing import Any, NamedTuple

from torch import Tensor

from fedddp import Cohort, Mean, Message, Method, PointSolver, Server, Task, Totals


class Clients(NamedTuple):
    """What each client remembers; the engine keeps it at the client's home, in checkpoints, and on any rank."""

    move: Tensor  # [C, P] what it sent last
    solver: Any


class Nudged(Method[Server, Clients]):
    """Federated averaging whose clients add a part of their last move to what they send.

    client   move_k <- (theta_k - theta) + part move_k,    theta_k <- solver on f_k from theta
    server   theta  <- theta + Σ_k N_k move_k / Σ_k N_k
    """

    part: float = 0.3  # share of the last move that is added again, in [0, 1); 0: federated averaging

    def __post_init__(self) -> None:
        if not 0 <= self.part < 1:
            raise ValueError(f"method.part={self.part}: must be in [0, 1)")

    def init_clients(self, count: int, task: Task, local: PointSolver) -> Clients:
        return Clients(task.initial.new_zeros(count, len(task.initial)), local.memory(task, count))

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        """A cohort's work; all tensors have a leading client axis C."""
        fit = local.minimise(cohort, server.theta, clients.solver)
        move = fit.theta - server.theta + self.part * clients.move
        return Clients(move, fit.memory), {"move": Mean(move, weight=cohort.num_examples)}

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        """On every rank alike, with the totals over all clients of the round."""
        return Server(server.theta + total["move"])
