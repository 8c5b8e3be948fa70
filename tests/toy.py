"""Linear regression over unequal clients in float64: every optimum and posterior is known in closed form."""

from typing import Any

import torch
from torch import Tensor, nn

from fedddp.clients.oracle import Oracle
from fedddp.core.data import Dataset, Examples
from fedddp.core.objective import SquaredError
from fedddp.core.params import Layout
from fedddp.core.rng import Streams, stream
from fedddp.core.shards import Shards
from fedddp.core.task import Task
from fedddp.exchange.group import Exchange
from fedddp.rounds.federate import Federation
from fedddp.rounds.plan import Plan
from fedddp.rounds.store import ClientStore

SIZES, D = (9, 24, 13, 30, 17), 4
K = len(SIZES)


def task(sizes: tuple[int, ...] = SIZES, dims: int = D, start: float = 0.3, rounds: int = 100) -> Task:
    """Clients with their own true weights and scales of inputs: heterogeneous."""
    generator = stream("toy")
    inputs, targets = [], []
    for size in sizes:
        x = torch.randn(size, dims, generator=generator, dtype=torch.float64)
        x = x * (0.5 + torch.rand(dims, generator=generator, dtype=torch.float64))
        w = torch.randn(dims, generator=generator, dtype=torch.float64)
        inputs.append(x)
        targets.append(x @ w + 0.1 * torch.randn(size, generator=generator, dtype=torch.float64))
    examples = Examples(torch.cat(inputs), torch.cat(targets))
    module = nn.Linear(dims, 1, bias=False, dtype=torch.float64)
    parts = list(torch.arange(len(examples)).split(list(sizes)))
    return Task(
        module=module,
        layout=Layout.of(module),
        objective=SquaredError(),
        data=Dataset(examples, examples, classes=0),
        shards=Shards.of(parts),
        streams=Streams(0),
        rounds=rounds,
        initial=torch.full((dims,), start, dtype=torch.float64),
        dtype=torch.float64,
    )


def gram(toy: Task, client: int) -> tuple[Tensor, Tensor]:
    """XᵀX and Xᵀy of a client: f_k = ½ θᵀXᵀXθ - θᵀXᵀy + const."""
    index = toy.shards.of_client(client)
    x, y = toy.data.train.inputs[index], toy.data.train.targets[index]
    return x.T @ x, x.T @ y


def pooled(toy: Task, decay: float = 0.0, weights: list[float] | None = None) -> Tensor:
    """argmin Σ_k w_k f_k + ½ decay |θ|²."""
    weights = weights or [1.0] * toy.num_clients
    grams = [gram(toy, k) for k in range(toy.num_clients)]
    hessian = sum(w * g for w, (g, _) in zip(weights, grams, strict=True))
    shift = sum(w * s for w, (_, s) in zip(weights, grams, strict=True))
    return torch.linalg.solve(hessian + decay * torch.eye(toy.layout.numel, dtype=torch.float64), shift)


def federation(
    method: Any, local: Any, toy: Task, exchange: Exchange, participation: float = 1.0, width: int = 3
) -> Federation:
    plan = Plan.make(toy.num_examples, width, participation, exchange.world_size)
    ids = plan.at_home(exchange.rank)
    store = ClientStore(ids, method.init_clients(len(ids), toy, local))
    oracle = Oracle(toy.module, toy.layout, method.objective(toy.objective))
    return Federation(toy, method, local, exchange, plan, store, oracle, participation=participation)


def iterate(fed: Federation, rounds: int) -> list[Any]:
    """The server's states, the first being its start."""
    states = [fed.method.init_server(fed.task)]
    for number in range(rounds):
        states.append(fed.round(states[-1], number)[0])
    return states
