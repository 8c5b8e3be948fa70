"""FedLap-Func ("Connecting Federated ADMM to Bayes", Eq. 17): FedLap that also sends predictions on a few inputs.

    client   w_k <- argmin f_k(w) + <v_k, w> + ½ delta |w - w_server|²
                    - Σ_{i in M_k} τ_i loss(ŷ_i, w) + Σ_j Σ_{i in M_j} τ_i loss(ŷ_i of the server, w)
             v_k <- v_k + damping delta (w_k - w_server),    ŷ_i <- prediction of w_k on M_k
    server   w_server <- argmin Σ_k [Σ_{i in M_k} τ_i loss(ŷ_i, w) - <v_k, w>] + ½ delta |w|²

A client's memory M_k is `points` inputs of each of its classes, sent once; τ_i = tau N_kc/M_kc, so that a point speaks
for its class. With memory=validation all clients share the inputs held out at the server (data.validation), without
their labels. The first round has no function terms. Nothing in the memory: fedlap, iterate by iterate.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from fedddp.clients.chain import Chain
from fedddp.clients.cohort import Batch, Cohort
from fedddp.core.check import check, check_count
from fedddp.core.objective import Binary, NextToken
from fedddp.core.rng import stream
from fedddp.core.task import Task
from fedddp.exchange.messages import Gather, Message, Sum, Totals
from fedddp.local import adam
from fedddp.methods.fedlap import Anchored, Clients, begin
from fedddp.rounds.solver import PointSolver


class Server(NamedTuple):
    theta: Tensor  # [P]
    duals: Tensor  # [P]
    inputs: Tensor  # [K, M, ...] the clients' memories, as stored; or [1, M, ...] shared by all
    weight: Tensor  # [K, M] τ_i; 0 where a client has no such point, or has not been heard of
    labels: Tensor  # [K, M, ...] each client's last predictions
    known: Tensor  # [K] 1 for clients that have sent their memory; on the host, which decides by it what travels


class Method(Anchored[Server]):
    memory: str = "own"  # own: a client's own inputs; or validation: inputs held out at the server, shared by all
    points: int = 1  # inputs of each class in a client's own memory, from 0 to 100,000
    tau: float = 1.0  # weight of a point of memory, per example that it speaks for; at least 0
    steps: int = 500  # steps of the server's Adam, at least 0
    lr: float = 0.001  # learning rate of the server's Adam, above 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check("method.memory", self.memory, self.memory in ("own", "validation"), "own or validation")
        check_count("method.points", self.points, least=0, most=100_000)
        check("method.tau", self.tau, self.tau >= 0, "at least 0")
        check("method.steps", self.steps, self.steps >= 0, "at least 0")
        check("method.lr", self.lr, self.lr > 0, "above 0")

    def init_server(self, task: Task) -> Server:
        nothing, clients = torch.zeros_like(task.initial), task.num_clients
        if self.memory == "validation":
            if task.data.validation is None:
                raise ValueError("method.memory=validation: no inputs are held out; set data.validation")
            inputs = task.data.validation.inputs.unsqueeze(0)
        else:
            stored = task.data.train.inputs
            shape = clients, self.points * _classes(task), *stored.shape[1:]
            inputs = torch.zeros(shape, dtype=stored.dtype, device=task.device)
        weight = nothing.new_zeros(clients, inputs.shape[1])
        example = predictions(task, task.initial, task.data.train.inputs[:1])
        labels = example.new_zeros(*weight.shape, *example.shape[1:])
        return Server(nothing, nothing, inputs, weight, labels, torch.zeros(clients, dtype=task.dtype))

    def broadcast(self, server: Server) -> tuple[Tensor, ...]:
        """Memories travel once: as long as some client is unknown, whoever is active sends its own."""
        return (server.theta,) if bool(server.known.all()) else (server.theta, server.inputs)

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        recalling = cohort.steered(Recall(cohort, server)) if cohort.round and self._counts(server) else cohort
        site = self._site(server.theta, clients)
        fit = local.minimise(recalling, begin(server.theta, cohort), clients.solver, site)
        change = self._dual_change(server.theta, fit.theta, cohort)
        message: Message = {"dual_change": Sum(change), **self._speak(server, cohort, fit.theta)}
        return Clients(clients.dual + change, fit.memory), message

    def _speak(self, server: Server, cohort: Cohort, theta: Tensor) -> Message:
        """What a client says of its memory: who it is, its predictions and, the first time, inputs and weights."""
        task = cohort.task
        if not server.weight.numel():
            return {}
        number = Gather(torch.tensor(cohort.ids) + 1)
        if bool(server.known.all()):
            stored = [server.inputs[client if len(server.inputs) > 1 else 0] for client in cohort.ids]
            return {"number": number, "labels": Gather(_said(task, theta, stored))}
        chosen = [self._choose(task, client) for client in cohort.ids]
        stored, weight = ([part[place] for part in chosen] for place in (0, 1))
        said = {"number": number, "labels": Gather(_said(task, theta, stored)), "weight": Gather(torch.stack(weight))}
        return said if self.memory == "validation" else said | {"inputs": Gather(torch.stack(stored))}

    def _choose(self, task: Task, client: int) -> tuple[Tensor, Tensor]:
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

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        duals = server.duals + total["dual_change"]
        server = server._replace(theta=duals / self.delta, duals=duals)
        if "labels" in total:
            server = _remember(server, total)
        return server._replace(theta=self._optimise(server, task)) if self._counts(server) else server

    def _counts(self, server: Server) -> bool:
        """Whether memories weigh anything once a client has been heard: whoever trains has an example of some class."""
        return self.tau > 0 and server.weight.numel() > 0

    def _optimise(self, server: Server, task: Task) -> Tensor:
        """Adam on Eq. 17 from Σ_k v_k/delta; the same on every rank."""
        solver, theta = adam.Solver(lr=self.lr, weight_decay=self.delta), server.theta.clone().unsqueeze(0)
        state, memory = solver.blank(1, task), everyone(server, task)
        for _ in range(self.steps):
            solver.step(theta, memory.pull(theta).sub_(server.duals), state, self.lr)
        return theta[0]


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
    def _chain(self) -> Chain | None:
        found = Chain.of(self.task.module, self.task.layout, self.task.objective) if self.vectorise else None
        return found if found is not None and found.takes(self.inputs.unsqueeze(0)) else None

    def pull(self, theta: Tensor) -> Tensor:
        """The gradient [c, P] at theta [c, P] of the first c rows, without dropout."""
        if self._chain is not None:
            return self._chain.pull(theta, self.inputs.expand(len(theta), *self.inputs.shape), self._slope)
        self.task.module.eval()
        with torch.enable_grad():
            params = {name: view.requires_grad_() for name, view in self.task.layout.views(theta.detach()).items()}
            outputs = self._outputs(params, len(theta))
            pieces = torch.autograd.grad(outputs, list(params.values()), self._slope(outputs.detach()))
        return torch.cat([piece.flatten(1) for piece in pieces], dim=1)

    def _outputs(self, params: dict[str, Tensor], rows: int) -> Tensor:
        """[c, m, ...]"""
        if self.vectorise and rows > 1:
            return vmap(lambda own: functional_call(self.task.module, own, (self.inputs,)))(params)
        own = [{name: view[row] for name, view in params.items()} for row in range(rows)]
        return torch.stack([functional_call(self.task.module, one, (self.inputs,)) for one in own])

    def _slope(self, outputs: Tensor) -> Tensor:
        rows = len(outputs)
        return _weigh(self.weight[:rows], soft(self.task, outputs)).sub_(self.wanted[:rows].view_as(outputs))


def everyone(server: Server, task: Task) -> Memory:
    """All memories with their clients' last predictions, as the one row that the server minimises."""
    weight, wanted = _joined(server, server.weight), _joined(server, _weigh(server.weight, server.labels))
    return Memory(task, recalled(server, task), weight.flatten()[None], wanted.flatten(0, 1)[None])


@dataclass
class Recall:
    """Adds Eq. 17's function terms to a cohort's gradients: all memories at the server's predictions, less its own."""

    cohort: Cohort
    server: Server

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


def recalled(server: Server, task: Task) -> Tensor:
    """All memories as model inputs [m, ...]."""
    return task.data.prepare(server.inputs.flatten(0, 1), task.dtype)


def _joined(server: Server, value: Tensor) -> Tensor:
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


def _remember(server: Server, total: Totals) -> Server:
    """Take up what active clients said; a client that was left out of the round has an empty row."""
    numbers = total["number"].cpu()  # once a round the host waits for these
    (heard,) = numbers.nonzero(as_tuple=True)
    ids = numbers[heard] - 1
    new = {name: getattr(server, name).clone() for name in ("inputs", "weight", "labels", "known")}
    for name in ("inputs", "weight", "labels"):
        if name in total:
            new[name][ids] = total[name][heard]
    new["known"][ids] = 1
    return server._replace(**new)


def _classes(task: Task) -> int:
    return task.data.classes if task.data.classes and task.data.train.targets.dim() == 1 else 1
