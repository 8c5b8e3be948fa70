"""Small problems in float64 and exact solvers, to watch methods on natural parameters round by round."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedddp.clients.cohort import Cohort
from fedddp.clients.curvature import ggn_full
from fedddp.core.data import Dataset, Examples
from fedddp.core.gaussian import Family, diagonal, full
from fedddp.core.objective import Objective
from fedddp.core.params import Layout
from fedddp.core.registry import find
from fedddp.core.rng import Streams
from fedddp.core.shards import Shards
from fedddp.core.task import Task
from fedddp.exchange.messages import Mean, Message, Totals
from fedddp.figures._least_squares import cohort
from fedddp.rounds.solver import Fit, Nothing


def linear_task(inputs: list[Tensor], targets: list[Tensor], outputs: int, classes: int, objective: Objective) -> Task:
    """A linear model without offset on each client's inputs [N, D]; the same noise in every round and for everyone.

    Frozen noise makes the variational objective one fixed function, whose minimum all methods look for.
    """
    examples = Examples(torch.cat(inputs), torch.cat(targets))
    module = nn.Linear(inputs[0].shape[1], outputs, bias=False, dtype=torch.float64)
    layout = Layout.of(module)
    return Task(
        module=module,
        layout=layout,
        objective=objective,
        data=Dataset(examples, examples, classes=classes),
        shards=Shards.of(list(torch.arange(len(examples)).split([len(t) for t in targets]))),
        streams=Streams(0, "frozen"),
        rounds=1,
        initial=torch.zeros(layout.numel, dtype=torch.float64),
        dtype=torch.float64,
    )


def digit_pairs(source: str, count: int, side: int) -> tuple[list[Tensor], list[Tensor]]:
    """Five clients with the digits (0, 1), (2, 3), ...: `count` pictures each, side x side pixels and a constant."""
    data = find("data", source)().load()
    inputs, targets = [], []
    for first in range(0, 10, 2):
        index = (data.train.targets // 2 == first // 2).nonzero().flatten()[:count]
        pictures = data.prepare(data.train.inputs[index], torch.float64).unsqueeze(1)
        pixels = F.adaptive_avg_pool2d(pictures, side).flatten(1)
        inputs.append(torch.cat([pixels, torch.ones(len(pixels), 1, dtype=torch.float64)], dim=1))
        targets.append(data.train.targets[index])
    return inputs, targets


def trace(method: Any, local: Any, task: Task, rounds: int) -> Iterator[tuple[Any, Message]]:
    """(server, what the clients said) after every round; first (server, nothing) before all."""
    everyone = cohort(task, 0)
    server, clients = method.init_server(task), method.init_clients(len(everyone), task, local)
    yield server, {}
    for number in range(rounds):
        with torch.no_grad():
            everyone = cohort(task, number)
            clients, message = method.client_step(server, clients, everyone, local)
            server = method.server_step(server, _totals(message), task)
        yield server, message


def _totals(message: Message) -> Totals:
    return {name: e.value.mean(0) if isinstance(e, Mean) else e.value.sum(0) for name, e in message.items()}


@dataclass
class Newton:
    """A point solver for small convex problems: Newton steps on f_k + energy(site), halved until the slope falls."""

    steps: int = 50
    tolerance: float = 1e-12  # of a step: the next one would be of the order of its square

    def memory(self, task: Task, count: int) -> Nothing:
        return Nothing()

    def minimise(
        self, cohort: Cohort, start: Tensor, memory: Any, site: Tensor | None = None, family: Family = diagonal
    ) -> Fit:
        site = family.linear(torch.zeros_like(start)).expand(len(cohort), -1, -1) if site is None else site
        pull = family.precision(site)
        pull = pull if family is full else torch.diag_embed(pull)
        theta = start.expand(len(cohort), -1)
        slope = cohort.full_grad(theta) + family.energy_grad(site, theta)
        for _ in range(self.steps):
            step = torch.linalg.solve(ggn_full(cohort, theta) + pull, slope)
            for _ in range(30):
                moved = theta - step
                there = cohort.full_grad(moved) + family.energy_grad(site, moved)
                worse = there.norm(dim=1) > slope.norm(dim=1)
                if not bool(worse.any()):
                    break
                step[worse] /= 2
            theta, slope = moved, there
            if float(step.norm()) < self.tolerance:
                break
        return Fit(theta, memory, torch.ones(len(cohort)))
