"""What function-space methods share: a memory of inputs for each client, and the terms that it adds to losses.

"Connecting Federated ADMM to Bayes", Eq. 16 and 17: a memory M_k is a few inputs of each class of a client, sent once,
with soft labels ŷ_i that are sent anew in every round. It adds Σ_{i in M_k} τ_i loss(ŷ_i, w), τ_i = tau N_kc/M_kc, so
that a point speaks for its class. With memory=validation all clients share the inputs held out at the server
(data.validation), without their labels.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.func import vmap

from fedddp.clients.chain import Chain
from fedddp.clients.cohort import Batch, Cohort
from fedddp.clients.stack import Stack
from fedddp.core.check import check, check_count
from fedddp.core.model import call
from fedddp.core.objective import Binary, NextToken
from fedddp.core.rng import stream
from fedddp.core.task import Task
from fedddp.exchange.messages import Gather, Message, Totals


class Said(NamedTuple):
    """What the server knows of all memories."""

    inputs: Tensor  # [K, M, ...] the clients' memories, as stored; or [1, M, ...] shared by all
    weight: Tensor  # [K, M] τ_i; 0 where a client has no such point, or has not been heard of
    labels: Tensor  # [K, M, ...] each client's last predictions
    known: Tensor  # [K] 1 for clients that have sent their memory; on the host, which decides by it what travels


class Knowing(Protocol):
    """A server's memory that has these, among others."""

    @property
    def theta(self) -> Tensor: ...
    @property
    def inputs(self) -> Tensor: ...
    @property
    def weight(self) -> Tensor: ...
    @property
    def labels(self) -> Tensor: ...
    @property
    def known(self) -> Tensor: ...


@dataclass(frozen=True)
class Choice:
    """Which inputs a client remembers, and what each weighs: the settings method.memory, points and tau."""

    memory: str
    points: int
    tau: float

    def __post_init__(self) -> None:
        check("method.memory", self.memory, self.memory in ("own", "validation"), "own or validation")
        check_count("method.points", self.points, least=0, most=100_000)
        check("method.tau", self.tau, self.tau >= 0, "at least 0")

    def blank(self, task: Task) -> Said:
        """Before anybody was heard."""
        clients = task.num_clients
        if self.memory == "validation":
            if task.data.validation is None:
                raise ValueError("method.memory=validation: no inputs are held out; set data.validation")
            inputs = task.data.validation.inputs.unsqueeze(0)
        else:
            stored = task.data.train.inputs
            shape = clients, self.points * _classes(task), *stored.shape[1:]
            inputs = torch.zeros(shape, dtype=stored.dtype, device=task.device)
        weight = task.initial.new_zeros(clients, inputs.shape[1])
        example = predictions(task, task.initial, task.data.train.inputs[:1])
        labels = example.new_zeros(*weight.shape, *example.shape[1:])
        return Said(inputs, weight, labels, torch.zeros(clients, dtype=task.dtype))

    def counts(self, server: Knowing) -> bool:
        """Whether memories weigh anything once a client has been heard: whoever trains has an example of some class."""
        return self.tau > 0 and server.weight.numel() > 0

    def speak(self, server: Knowing, cohort: Cohort, theta: Tensor) -> Message:
        """What a client says of its memory: who it is, its predictions and, the first time, inputs and weights."""
        task = cohort.task
        if not server.weight.numel():
            return {}
        number = Gather(torch.tensor(cohort.ids) + 1)
        if bool(server.known.all()):
            stored = [server.inputs[client if len(server.inputs) > 1 else 0] for client in cohort.ids]
            return {"number": number, "labels": Gather(_said(task, theta, stored))}
        chosen = [self.choose(task, client) for client in cohort.ids]
        stored, weight = ([part[place] for part in chosen] for place in (0, 1))
        said = {"number": number, "labels": Gather(_said(task, theta, stored)), "weight": Gather(torch.stack(weight))}
        return said if self.memory == "validation" else said | {"inputs": Gather(torch.stack(stored))}

    def choose(self, task: Task, client: int) -> tuple[Tensor, Tensor]:
        """A client's memory [M, ...] and its weights [M], the same whenever asked."""
        index = task.shards.of_client(client)
        if self.memory == "validation":
            assert task.data.validation is not None
            inputs = task.data.validation.inputs
            return inputs, task.initial.new_full((len(inputs),), self.tau * len(index) / len(inputs))
        train, order = task.data.train, stream(task.streams.seed, "memory", client)
        index = index[torch.randperm(len(index), generator=order)]
        label = train.targets[index] if _classes(task) > 1 else torch.zeros_like(index)
        slots = index.new_zeros(_classes(task), self.points)
        weight = torch.zeros(_classes(task), self.points, dtype=task.dtype)
        for c in range(len(slots)):
            own = index[label == c]
            taken = min(self.points, len(own))
            slots[c, :taken] = own[:taken]
            weight[c, :taken] = self.tau * len(own) / max(taken, 1)
        inputs = train.inputs[slots.flatten()]
        inputs[weight.flatten() == 0] = 0
        return inputs.to(task.device), weight.flatten().to(task.device)


@dataclass
class Memory:
    """For each row the sum over all memories i of Σ_t w_it loss(label_it, w), in which each has terms of its own.

    Every loss here has the gradient `prediction - label` at the model's outputs, so that of the sum is
    weight_i prediction_i - wanted_i with weight_i = Σ_t w_it and wanted_i = Σ_t w_it label_it.
    """

    task: Task
    inputs: Tensor  # [m, ...] as the model sees them
    weight: Tensor  # [c, m]
    wanted: Tensor  # [c, m, ...] shaped like the outputs
    vectorise: bool = True  # compute rows by vmap rather than one by one, where there are several

    @cached_property
    def _by_hand(self) -> Chain | Stack | None:
        made = (self.task.module, self.task.layout, self.task.objective)
        chain = Chain.of(*made) if self.vectorise else None
        if chain is not None and chain.takes(self.inputs.unsqueeze(0)):
            return chain
        return Stack.of(*made) if self.vectorise else None

    def pull(self, theta: Tensor) -> Tensor:
        """The gradient [c, P] at theta [c, P] of the first c rows, without dropout."""
        if self._by_hand is not None:
            return self._by_hand.pull(theta, self.inputs.expand(len(theta), *self.inputs.shape), self._slope)
        self.task.module.eval()
        with torch.enable_grad():
            params = {name: view.requires_grad_() for name, view in self.task.layout.views(theta.detach()).items()}
            outputs = self._outputs(params, len(theta))
            pieces = torch.autograd.grad(outputs, list(params.values()), self._slope(outputs.detach()))
        return torch.cat([piece.flatten(1) for piece in pieces], dim=1)

    def _outputs(self, params: dict[str, Tensor], rows: int) -> Tensor:
        """[c, m, ...]"""
        if self.vectorise and rows > 1:
            return vmap(lambda own: call(self.task.module, own, self.inputs))(params)
        own = [{name: view[row] for name, view in params.items()} for row in range(rows)]
        return torch.stack([call(self.task.module, one, self.inputs) for one in own])

    def _slope(self, outputs: Tensor) -> Tensor:
        rows = len(outputs)
        return _weigh(self.weight[:rows], soft(self.task, outputs)).sub_(self.wanted[:rows].view_as(outputs))


def everyone(server: Knowing, task: Task) -> Memory:
    """All memories with their clients' last predictions, as the one row that the server minimises."""
    weight, wanted = _joined(server, server.weight), _joined(server, _weigh(server.weight, server.labels))
    return Memory(task, recalled(server, task), weight.flatten()[None], wanted.flatten(0, 1)[None])


@dataclass
class Recall:
    """Adds Eq. 17's function terms to a cohort's gradients: all memories at the server's predictions, less its own."""

    cohort: Cohort
    server: Knowing

    def __call__(self, theta: Tensor, grad: Tensor, batch: Batch) -> Tensor:
        return grad.add_(self.memory.pull(theta))

    @cached_property
    def memory(self) -> Memory:
        """Per example of each client, as its gradient is."""
        server, task, ids = self.server, self.cohort.task, torch.tensor(self.cohort.ids)
        weight = _joined(server, server.weight)
        labels = predictions(task, server.theta, server.inputs.flatten(0, 1))
        wanted = _weigh(weight, labels.unflatten(0, weight.shape))
        own = (
            torch.arange(len(ids)),
            ids if len(weight) > 1 else torch.zeros_like(ids),
        )  # each client's place in its row
        weight, wanted = (part.expand(len(ids), *part.shape).clone() for part in (weight, wanted))
        weight[own] -= server.weight[ids]
        wanted[own] -= _weigh(server.weight[ids], server.labels[ids])
        each = 1 / self.cohort.num_examples
        weight, wanted = (_weigh(each, part).flatten(1, 2) for part in (weight, wanted))
        return Memory(task, recalled(server, task), weight, wanted, self.cohort.oracle.vectorise)


def recalled(server: Knowing, task: Task) -> Tensor:
    """All memories as model inputs [m, ...]."""
    return task.data.prepare(server.inputs.flatten(0, 1), task.dtype)


def _joined(server: Knowing, value: Tensor) -> Tensor:
    """What clients say [K, M, ...] of each input that there is; summed to [1, M, ...] where they share their inputs."""
    return value if len(server.inputs) == len(value) else value.sum(0, keepdim=True)


def _weigh(weight: Tensor, value: Tensor) -> Tensor:
    """weight [...] times value [..., more axes]."""
    return weight.view(*weight.shape, *[1] * (value.dim() - weight.dim())) * value


def soft(task: Task, outputs: Tensor) -> Tensor:
    """What the objective predicts: the mean of a target, shaped like the outputs."""
    found = task.objective.probabilities(outputs).to(outputs.dtype)
    return found[..., 1:] if isinstance(task.objective, Binary) else found


def predictions(task: Task, theta: Tensor, stored: Tensor) -> Tensor:
    """Soft labels [m, ...] of stored inputs, as the objective takes targets."""
    if isinstance(task.objective, NextToken):
        raise ValueError("method.name=fedlap_func: predictions of text are not supported; choose another method")
    found = soft(task, task.outputs(theta, stored))
    return found.squeeze(-1) if isinstance(task.objective, Binary) else found


def _said(task: Task, theta: Tensor, stored: list[Tensor]) -> Tensor:
    """Each client's predictions [C, M, ...] on its own inputs."""
    return torch.stack([predictions(task, row, inputs) for row, inputs in zip(theta, stored, strict=True)])


def remember(server: Knowing, total: Totals) -> dict[str, Tensor]:
    """What active clients said, taken up; a client that was left out of the round has an empty row."""
    numbers = total["number"].cpu()  # once a round the host waits for these
    (heard,) = numbers.nonzero(as_tuple=True)
    ids = numbers[heard] - 1
    new = {name: getattr(server, name).clone() for name in ("inputs", "weight", "labels", "known")}
    for name in ("inputs", "weight", "labels"):
        if name in total:
            new[name][ids] = total[name][heard]
    new["known"][ids] = 1
    return new


def _classes(task: Task) -> int:
    return task.data.classes if task.data.classes and task.data.train.targets.dim() == 1 else 1
