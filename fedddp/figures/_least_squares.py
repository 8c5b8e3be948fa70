"""Least squares over clients in float64, where optima and changes are known in closed form."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from fedddp.clients.cohort import Cohort
from fedddp.clients.oracle import Oracle
from fedddp.core.data import Dataset, Examples
from fedddp.core.objective import SquaredError
from fedddp.core.params import Layout
from fedddp.core.rng import Streams
from fedddp.core.shards import Shards
from fedddp.core.task import Task
from fedddp.exchange.group import Exchange
from fedddp.rounds.federate import Federation
from fedddp.rounds.plan import Plan
from fedddp.rounds.store import ClientStore


def least_squares(clients: Sequence[tuple[Tensor, Tensor]], start: Tensor, seed: int) -> Task:
    """A linear model without offset on each client's inputs [N, P] and targets [N]."""
    inputs, targets = (torch.cat(part) for part in zip(*clients, strict=True))
    examples = Examples(inputs, targets)
    module = nn.Linear(inputs.shape[1], 1, bias=False, dtype=torch.float64)
    return Task(
        module=module,
        layout=Layout.of(module),
        objective=SquaredError(),
        data=Dataset(examples, examples, classes=0),
        shards=Shards.of(list(torch.arange(len(targets)).split([len(y) for _, y in clients]))),
        streams=Streams(seed),
        rounds=1,
        initial=start,
        dtype=torch.float64,
    )


def normal(task: Task, clients: Sequence[int]) -> tuple[Tensor, Tensor]:
    """XᵀX and Xᵀy of some clients together."""
    index = torch.cat([task.shards.of_client(client) for client in clients])
    x, y = task.data.train.inputs[index], task.data.train.targets[index]
    return x.T @ x, x.T @ y


def cohort(task: Task, round_: int) -> Cohort:
    """All clients, as one."""
    ids = task.num_examples.argsort(descending=True, stable=True)
    return Cohort(tuple(ids.tolist()), round_, task, Oracle(task.module, task.layout, task.objective))


def path(method: Any, local: Any, task: Task, exchange: Exchange, rounds: int) -> Tensor:
    """The server's parameters before and after every round, [rounds + 1, P]."""
    plan = Plan.make(task.num_examples, task.num_clients, 1.0, exchange.world_size)
    ids = plan.at_home(exchange.rank)
    store = ClientStore(ids, method.init_clients(len(ids), task, local))
    oracle = Oracle(task.module, task.layout, task.objective)
    federation = Federation(task, method, local, exchange, plan, store, oracle)
    states = [method.init_server(task)]
    for number in range(rounds):
        states.append(federation.round(states[-1], number)[0])
    return torch.stack([state.theta for state in states])


@contextmanager
def alone(exchange: Exchange | None) -> Iterator[Exchange]:
    """The world that is given, or one of our own for as long as we draw."""
    if exchange is not None:
        yield exchange
        return
    own = Exchange.connect(torch.device("cpu"))
    try:
        yield own
    finally:
        own.close()
