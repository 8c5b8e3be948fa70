"""Linear regression over unequal clients in float64: every optimum and posterior is known in closed form."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from fedddp import gaussian
from fedddp.cohort import Cohort
from fedddp.data import Dataset, Examples
from fedddp.exchange import Exchange
from fedddp.federate import Federation
from fedddp.gaussian import Family
from fedddp.local import Fit, Nothing
from fedddp.objective import SquaredError
from fedddp.oracle import Oracle
from fedddp.params import Layout
from fedddp.plan import Plan
from fedddp.rng import Streams, stream
from fedddp.splits import Shards
from fedddp.store import ClientStore
from fedddp.task import Task

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


@dataclass
class Exact:
    """A point solver that returns the exact minimiser of f_k + energy(site); a test instrument."""

    def memory(self, toy: Task, count: int) -> Nothing:
        return Nothing()

    def minimise(
        self, cohort: Cohort, start: Tensor, memory: Any, site: Tensor | None = None, family: Family = gaussian.diagonal
    ) -> Fit:
        rows = []
        for row, client in enumerate(cohort.ids):
            hessian, shift = gram(cohort.task, client)
            if site is not None:
                lam = site[row] if site.dim() > 2 and len(site) == len(cohort) else site.reshape(site.shape[-2:])
                precision = family.precision(lam)
                hessian = hessian + (precision if precision.dim() == 2 else torch.diag(precision))
                shift = shift + family.shift(lam)
            rows.append(torch.linalg.solve(hessian, shift))
        return Fit(torch.stack(rows), memory, torch.ones(len(cohort)))


def federation(
    method: Any, local: Any, toy: Task, exchange: Exchange, participation: float = 1.0, width: int = 3
) -> Federation:
    plan = Plan.make(toy.num_examples, width, participation, exchange.world_size)
    ids = plan.at_home(exchange.rank)
    store = ClientStore(ids, method.init_clients(len(ids), toy, local))
    oracle = Oracle(toy.module, toy.layout, toy.objective)
    return Federation(toy, method, local, exchange, plan, store, oracle, participation=participation)


def iterate(fed: Federation, rounds: int) -> list[Any]:
    """The server's states, the first being its start."""
    states = [fed.method.init_server(fed.task)]
    for number in range(rounds):
        states.append(fed.round(states[-1], number)[0])
    return states
