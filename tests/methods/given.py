"""Federations whose clients have their parameters already, so that only what the server makes of them is tested."""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from fedddp.clients.cohort import Cohort
from fedddp.core.data import Dataset, Examples
from fedddp.core.objective import CrossEntropy
from fedddp.core.params import Layout
from fedddp.core.rng import stream
from fedddp.core.shards import Shards
from fedddp.core.task import Task
from fedddp.exchange.group import Exchange
from fedddp.rounds.solver import Fit, Nothing
from tests import toy


@dataclass
class Given:
    """A point solver that hands every client the row that the test wrote for it."""

    theta: Tensor  # [K, P]

    def memory(self, task: Task, count: int) -> Nothing:
        return Nothing()

    def minimise(self, cohort: Cohort, start: Tensor, memory: Any, site: Any = None, family: Any = None) -> Fit:
        return Fit(self.theta[list(cohort.ids)], memory, torch.ones(len(cohort)))


def task(module: nn.Module, shape: tuple[int, ...], sizes: tuple[int, ...] = (20, 30, 25), classes: int = 3) -> Task:
    """Random inputs of a shape and random labels, in float64."""
    generator = stream("given")
    inputs = torch.randn(sum(sizes), *shape, generator=generator, dtype=torch.float64)
    targets = torch.randint(classes, (sum(sizes),), generator=generator)
    module = module.double()
    layout = Layout.of(module)
    return replace(
        toy.task(sizes=sizes),
        module=module,
        layout=layout,
        objective=CrossEntropy(),
        data=Dataset(Examples(inputs, targets), Examples(inputs, targets), classes),
        shards=Shards.of(list(torch.arange(sum(sizes)).split(list(sizes)))),
        initial=layout.flatten(dict(module.named_parameters())),
    )


def around(given: Task, spread: float = 0.3) -> Tensor:
    """A parameter vector for each client, [K, P]."""
    noise = torch.randn(given.num_clients, given.layout.numel, generator=stream("around"), dtype=torch.float64)
    return given.initial + spread * noise


def merge(method: Any, theta: Tensor, given: Task, exchange: Exchange) -> Any:
    """The server after one round in which client k sends theta[k]."""
    return toy.iterate(toy.federation(method, Given(theta), given, exchange), 1)[-1]


def mlp(bias: bool = True) -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(5, 7, bias=bias), nn.ReLU(), nn.Linear(7, 6, bias=bias), nn.Tanh(), nn.Linear(6, 3))


def lenet() -> nn.Module:
    """Two convolutions, pooling, and linear layers on flattened channels; no biases."""
    torch.manual_seed(4)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, bias=False),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, bias=False),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24, 8, bias=False),
        nn.ReLU(),
        nn.Linear(8, 3, bias=False),
    )


def with_validation(task: Task, count: int = 40) -> Task:
    """The same task with points at the server."""
    generator = stream("held")
    inputs = torch.randn(count, *task.data.input_shape, generator=generator, dtype=torch.float64)
    held = Examples(inputs, torch.randint(3, (count,), generator=generator))
    return replace(task, data=replace(task.data, validation=held))


def accuracy(task: Task, theta: Tensor) -> float:
    """On the server's points."""
    held = task.data.validation
    assert held is not None
    return float((task.outputs(theta, held.inputs).argmax(1) == held.targets).double().mean())
