"""What becomes of buffers that training moves without a gradient, such as BatchNorm's running statistics.

    average   client  buffers_k <- moved by its steps, from the server's
              server  buffers   <- Σ_k N_k buffers_k / Σ_k N_k
    local     client  buffers_k <- moved by its steps, from its own (SiloBN, Andreux et al. 2020; FedBN, Li et al. 2021)

A model is then a vector [P + S]. With `local` there is no model without a client: a run is judged by each client's, the
server's parameters with the client's own statistics. The parameters of the layers are shared either way.
"""

from functools import partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core.task import Task
from fedddp.exchange.messages import Mean, Message, Totals
from fedddp.rounds.around import Around
from fedddp.rounds.method import Phase
from fedddp.rounds.solver import Nothing

FIELD = "buffers"


class Server(NamedTuple):
    method: Any  # what the method's server remembers
    buffers: Tensor  # [S]; with `local` where clients begin

    @property
    def theta(self) -> Tensor:
        theta: Tensor = self.method.theta
        return theta


class Clients(NamedTuple):
    method: Any  # what the method's clients remember
    buffers: Tensor | Nothing  # [C, S] with `local`


class Buffered(Around):
    """A method whose clients' models have buffers."""

    _holds: ClassVar[tuple[type, ...]] = (Server, Clients)
    local: bool

    def init_server(self, task: Task) -> Server:
        assert task.state is not None
        return Server(self.method.init_server(task), task.state)

    def init_clients(self, count: int, task: Task, local: Any) -> Clients:
        assert task.state is not None
        own = self.method.init_clients(count, task, local)
        return Clients(own, task.state.expand(count, -1).clone() if self.local else Nothing())

    def phase(self, server: Server, index: int) -> Phase | None:
        inner = self.method.phase(server.method, index)
        if inner is None:
            return None
        sent = () if self.local else (server.buffers,)
        return Phase(partial(self._work, inner), partial(self._gather, inner), (*inner.broadcast, *sent))

    def _work(
        self, inner: Phase, server: Server, clients: Clients, cohort: Cohort, local: Any
    ) -> tuple[Clients, Message]:
        own = clients.buffers
        cohort.state = own.clone() if isinstance(own, Tensor) else server.buffers.expand(len(cohort), -1).clone()
        memory, message = inner.client_step(server.method, clients.method, cohort, local)
        if self.local:
            return Clients(memory, cohort.state), message
        return Clients(memory, own), {**message, FIELD: Mean(cohort.state, weight=cohort.num_examples)}

    def _gather(self, inner: Phase, server: Server, total: Totals, task: Task) -> Server:
        own = inner.server_step(server.method, total, task)
        return Server(own, server.buffers if self.local else total[FIELD])

    def bytes_up(self, plain: int, server: Server, total: Totals) -> float:
        more = 0 if self.local else total[FIELD].numel() * total[FIELD].itemsize
        return super().bytes_up(plain - more, server, total) + more

    def models(self, server: Server) -> Tensor:
        own = super().models(server)
        return torch.cat([own, server.buffers.expand(len(own), -1)], 1)

    def own_models(self, server: Server, clients: Clients) -> Tensor | None:
        own = super().own_models(server, clients)
        if isinstance(clients.buffers, Tensor):
            shared = self.method.models(server.method)[:1].expand(len(clients.buffers), -1)
            return torch.cat([shared if own is None else own, clients.buffers], 1)
        return None if own is None else torch.cat([own, server.buffers.expand(len(own), -1)], 1)

    def forget(self, server: Server, client: Clients, task: Task) -> Any:
        """An average of buffers does not keep apart what each client has added."""
        return super().forget(server, client, task) if self.local else None
