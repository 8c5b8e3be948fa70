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
from fedddp.exchange.messages import Gather, Mean, Message, Sum
from fedddp.rounds.around import Around

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


class Averaged(Around):
    """A method whose clients average over parts of their examples."""

    parts: int

    def __post_init__(self) -> None:
        self.clips, self.compresses = self.method.clips, self.method.compresses  # type: ignore[misc]

    def init_server(self, task: Task) -> Any:
        task.shards.divided(self.parts, KEY)  # so that too many parts are said at once
        return self.method.init_server(task)

    def client_step(self, server: Any, clients: Any, cohort: Cohort, local: Any) -> tuple[Any, Message]:
        found = [self.method.client_step(server, clients, one, local) for one in shares(cohort, self.parts)]
        messages = [message for _, message in found]
        sent = {name: _merged([message[name] for message in messages]) for name in messages[0]}
        return averaged([own for own, _ in found]), sent


def _merged(entries: Sequence[Sum | Mean | Gather]) -> Sum | Mean | Gather:
    value = torch.stack([entry.value for entry in entries]).mean(0)
    first = entries[0]
    return Mean(value, first.weight) if isinstance(first, Mean) else type(first)(value)
