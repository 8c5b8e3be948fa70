"""FedLap-Func ("Connecting Federated ADMM to Bayes", Eq. 17): FedLap that also sends predictions on a few inputs.

    client   w_k <- argmin f_k(w) + <v_k, w> + ½ delta |w - w_server|²
                    - Σ_{i in M_k} τ_i loss(ŷ_i, w) + Σ_j Σ_{i in M_j} τ_i loss(ŷ_i of the server, w)
             v_k <- v_k + damping delta (w_k - w_server),    ŷ_i <- prediction of w_k on M_k
    server   w_server <- argmin Σ_k [Σ_{i in M_k} τ_i loss(ŷ_i, w) - <v_k, w>] + ½ delta |w|²

A client's memory M_k is `points` inputs of each of its classes, sent once; τ_i = tau N_kc/M_kc, so that a point speaks
for its class. With memory=validation all clients share the inputs held out at the server (data.validation), without
their labels. The first round has no function terms. Nothing in the memory: fedlap, iterate by iterate.
"""

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.exchange.messages import Message, Sum, Totals
from fedddp.local import adam
from fedddp.methods import _descent
from fedddp.methods._memory import Choice, Recall, everyone, remember
from fedddp.methods.fedlap import Anchored, Clients, begin
from fedddp.rounds.solver import PointSolver


class Server(NamedTuple):
    theta: Tensor  # [P] the parameters
    duals: Tensor  # [P] sum of the multipliers of all clients
    inputs: Tensor  # [K, M, ...] the clients' memories, as stored; or [1, M, ...] shared by all
    weight: Tensor  # [K, M] τ_i; 0 where a client has no such point, or has not been heard of
    labels: Tensor  # [K, M, ...] each client's last predictions
    known: Tensor  # [K] 1 for clients that have sent their memory; on the host, which decides by it what travels


class Method(Anchored[Server]):
    undivided: ClassVar[str] = "whose server asks the whole model what it says of the memory's inputs"
    memory: str = "own"  # own: a client's own inputs; or validation: inputs held out at the server, shared by all
    points: int = 1  # inputs of each class in a client's own memory, from 0 to 100,000
    tau: float = 1.0  # weight of a point of memory, per example that it speaks for; at least 0
    steps: int = 500  # steps of the server's Adam, at least 0
    lr: float = 0.001  # learning rate of the server's Adam, above 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self._choice()
        check("method.steps", self.steps, self.steps >= 0, "at least 0")
        check("method.lr", self.lr, self.lr > 0, "above 0")

    def init_server(self, task: Task) -> Server:
        nothing = torch.zeros_like(task.initial)
        return Server(nothing, nothing, *self._choice().blank(task))

    def broadcast(self, server: Server) -> tuple[Tensor, ...]:
        """Memories travel once: as long as some client is unknown, whoever is active sends its own."""
        return (server.theta,) if bool(server.known.all()) else (server.theta, server.inputs)

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        recalling = cohort.steered(Recall(cohort, server)) if cohort.round and self._choice().counts(server) else cohort
        site = self._site(server.theta, clients)
        fit = local.minimise(recalling, begin(server.theta, cohort), clients.solver, site)
        change = self._dual_change(server.theta, fit.theta, cohort)
        message: Message = {"dual_change": Sum(change), **self._choice().speak(server, cohort, fit.theta)}
        return Clients(clients.dual + change, fit.memory), message

    def admit(self, server: Server, task: Task) -> Server | None:
        """It has a place for the memory of each client that was there."""
        return None

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        duals = server.duals + total["dual_change"]
        server = server._replace(theta=duals / self.delta, duals=duals)
        if "labels" in total:
            server = server._replace(**remember(server, total))
        return server._replace(theta=self._optimise(server, task)) if self._choice().counts(server) else server

    def _choice(self) -> Choice:
        return Choice(self.memory, self.points, self.tau)

    def _optimise(self, server: Server, task: Task) -> Tensor:
        """Adam on Eq. 17 from Σ_k v_k/delta; the same on every rank."""
        solver, memory = adam.Solver(lr=self.lr, weight_decay=self.delta), everyone(server, task)
        start, looks = _descent.begin(server.theta[None], task, solver, validate=False), [False] * self.steps
        return _descent.walk(start, lambda theta: memory.pull(theta).sub_(server.duals), looks, task, solver).theta[0]
