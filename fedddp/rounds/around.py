"""A method around another: what clients send, or what they train, is changed; all else is the other method's own.

A memory that has something beside the other method's holds that one's as `method`, and is one of `_holds`; any other
memory is the other method's as it is. A class around a method writes the hooks in which it differs, and no others.
"""

from typing import Any, ClassVar

from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core.objective import Objective
from fedddp.core.task import Task
from fedddp.exchange.messages import Message, Totals
from fedddp.rounds.method import Method, Phase
from fedddp.rounds.solver import Solver


class Around(Method[Any, Any, Any], extends=True):
    _holds: ClassVar[tuple[type, ...]] = ()  # memories of its own
    method: Method[Any, Any, Any]

    def _own(self, memory: Any) -> Any:
        """What the method itself remembers."""
        return memory.method if type(memory) in self._holds else memory

    def _with(self, memory: Any, own: Any) -> Any:
        """The memory with another one of the method's."""
        return memory._replace(method=own) if type(memory) in self._holds else own

    def _task(self, task: Task) -> Task:
        """As the method sees it."""
        return task

    def init_server(self, task: Task) -> Any:
        return self.method.init_server(self._task(task))

    def init_clients(self, count: int, task: Task, local: Any) -> Any:
        return self.method.init_clients(count, self._task(task), local)

    def client_step(self, server: Any, clients: Any, cohort: Cohort, local: Any) -> tuple[Any, Message]:
        memory, message = self.method.client_step(self._own(server), self._own(clients), cohort, local)
        return self._with(clients, memory), message

    def server_step(self, server: Any, total: Totals, task: Task) -> Any:
        return self._with(server, self.method.server_step(self._own(server), total, self._task(task)))

    def phase(self, server: Any, index: int) -> Phase | None:
        own = self.method.phase(self._own(server), index)
        return own and Phase(self.client_step, self.server_step, own.broadcast)

    def broadcast(self, server: Any) -> tuple[Any, ...]:
        return self.method.broadcast(self._own(server))

    def models(self, server: Any) -> Tensor:
        return self.method.models(self._own(server))

    def posterior(self, server: Any) -> Tensor | None:
        return self.method.posterior(self._own(server))

    def own_models(self, server: Any, clients: Any) -> Tensor | None:
        return self.method.own_models(self._own(server), self._own(clients))

    def duals(self, clients: Any) -> Tensor | None:
        return self.method.duals(self._own(clients))

    def metrics(self, before: Any, after: Any, total: Totals) -> dict[str, float]:
        return self.method.metrics(self._own(before), self._own(after), total)

    def bytes_up(self, plain: int, server: Any, total: Totals) -> float:
        return self.method.bytes_up(plain, self._own(server), total)

    def base(self, server: Any) -> Tensor | float:
        return self.method.base(self._own(server))

    def remember(self, clients: Any, own: Any, change: Tensor) -> Any:
        return self._with(own, self.method.remember(self._own(clients), self._own(own), change))

    def noisy(self, server: Any, change: Tensor, clients: float) -> Totals:
        return self.method.noisy(self._own(server), change, clients)

    def mend(self, server: Any) -> Any:
        return self._with(server, self.method.mend(self._own(server)))

    def improper(self, server: Any) -> str:
        return self.method.improper(self._own(server))

    def objective(self, plain: Objective) -> Objective:
        return self.method.objective(plain)

    def forget(self, server: Any, client: Any, task: Task) -> Any:
        own = self.method.forget(self._own(server), self._own(client), self._task(task))
        return None if own is None else self._with(server, own)

    def admit(self, server: Any, task: Task) -> Any:
        own = self.method.admit(self._own(server), self._task(task))
        return None if own is None else self._with(server, own)

    def uses_total(self) -> bool:
        return self.method.uses_total()

    def mismatch(self, local: Solver) -> str:
        return self.method.mismatch(local)
