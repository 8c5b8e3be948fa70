"""Local averaging: a client's examples in disjoint parts, each fitted by itself, and the mean of what comes of it.

    client   (memory_p, message_p) <- the method's step on part p alone, p = 1, ..., P, all from the same memory
             memory, message       <- their means

Each part counts as much as all of the client's examples (its mean loss stands for theirs). Heikkilä et al. (2022) fit
the parts of a client to the same cavity in this way and average natural parameters; read in their published program.
Here it is for every method whose clients look at examples through their solver alone; with noise: rounds/private.py.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core import tree
from fedddp.core.task import Task
from fedddp.exchange.messages import Gather, Mean, Message, Sum, Totals
from fedddp.rounds.method import Method, Phase

KEY = "federation.parts"


def shares(cohort: Cohort, count: int) -> list[Cohort]:
    """The cohort with each part of its clients' examples, or as it is."""
    if count == 1:
        return [cohort]
    return [cohort.share(number, held) for number, held in enumerate(cohort.task.shards.divided(count, KEY))]


def averaged(memories: Sequence[Any]) -> Any:
    """The mean of memories, leaf by leaf; counters stay integers."""
    first, *others = memories
    if not others:
        return first
    leaves = [tree.leaves(memory) for memory in memories]
    return tree.rebuild(first, {name: _mean([one[name] for one in leaves]) for name in leaves[0]})


def _mean(values: Sequence[Tensor]) -> Tensor:
    if not values[0].is_floating_point():
        return values[0]
    return torch.stack(list(values)).mean(0)


class Averaged(Method[Any, Any, Any]):
    """A method whose clients average over parts of their examples; all else is the method's own."""

    method: Method[Any, Any, Any]
    parts: int

    def __post_init__(self) -> None:
        self.clips, self.compresses = self.method.clips, self.method.compresses  # type: ignore[misc]

    def init_server(self, task: Task) -> Any:
        task.shards.divided(self.parts, KEY)  # so that too many parts are said at once
        return self.method.init_server(task)

    def init_clients(self, count: int, task: Task, local: Any) -> Any:
        return self.method.init_clients(count, task, local)

    def client_step(self, server: Any, clients: Any, cohort: Cohort, local: Any) -> tuple[Any, Message]:
        found = [self.method.client_step(server, clients, one, local) for one in shares(cohort, self.parts)]
        messages = [message for _, message in found]
        sent = {name: _merged([message[name] for message in messages]) for name in messages[0]}
        return averaged([own for own, _ in found]), sent

    def server_step(self, server: Any, total: Totals, task: Task) -> Any:
        return self.method.server_step(server, total, task)

    def phase(self, server: Any, index: int) -> Phase | None:
        own = self.method.phase(server, index)
        return own and Phase(self.client_step, self.server_step, own.broadcast)

    def base(self, server: Any) -> Tensor | float:
        return self.method.base(server)

    def remember(self, clients: Any, own: Any, change: Tensor) -> Any:
        return self.method.remember(clients, own, change)

    def noisy(self, server: Any, change: Tensor, clients: float) -> Totals:
        return self.method.noisy(server, change, clients)

    def mend(self, server: Any) -> Any:
        return self.method.mend(server)

    def broadcast(self, server: Any) -> tuple[Any, ...]:
        return self.method.broadcast(server)

    def models(self, server: Any) -> Tensor:
        return self.method.models(server)

    def posterior(self, server: Any) -> Tensor | None:
        return self.method.posterior(server)

    def own_models(self, server: Any, clients: Any) -> Tensor | None:
        return self.method.own_models(server, clients)

    def duals(self, clients: Any) -> Tensor | None:
        return self.method.duals(clients)

    def metrics(self, before: Any, after: Any, total: Totals) -> dict[str, float]:
        return self.method.metrics(before, after, total)

    def improper(self, server: Any) -> str:
        return self.method.improper(server)

    def forget(self, server: Any, client: Any, task: Task) -> Any:
        return self.method.forget(server, client, task)

    def admit(self, server: Any, task: Task) -> Any:
        return self.method.admit(server, task)

    def uses_total(self) -> bool:
        return self.method.uses_total()


def _merged(entries: Sequence[Sum | Mean | Gather]) -> Sum | Mean | Gather:
    value = torch.stack([entry.value for entry in entries]).mean(0)
    first = entries[0]
    return Mean(value, first.weight) if isinstance(first, Mean) else type(first)(value)
