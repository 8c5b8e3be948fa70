"""FedLap-Func ("Connecting Federated ADMM to Bayes", Eq. 17): FedLap that also sends predictions on a few inputs.

    client   w_k <- argmin f_k(w) + <v_k, w> + ½ delta |w - w_server|²
                    - Σ_{i in M_k} τ_i loss(ŷ_i, w) + Σ_j Σ_{i in M_j} τ_i loss(ŷ_i of the server, w)
             v_k <- v_k + damping delta (w_k - w_server),    ŷ_i <- prediction of w_k on M_k
    server   w_server <- argmin Σ_k [Σ_{i in M_k} τ_i loss(ŷ_i, w) - <v_k, w>] + ½ delta |w|²

A client's memory M_k is `points` inputs of each of its classes, sent once; τ_i = tau N_kc/M_kc, so that a point speaks
for its class. With memory=validation all clients share the inputs held out at the server (data.validation), without
their labels. The first round has no function terms. Nothing in the memory: fedlap, iterate by iterate.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import functional_call

from fedddp.clients.chain import Chain
from fedddp.clients.cohort import Batch, Cohort
from fedddp.core.check import check
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
    known: Tensor  # [K] 1 for clients that have sent their memory


class Method(Anchored[Server]):
    memory: str = "own"  # or validation: inputs held out at the server, shared by all
    points: int = 1  # of each class in a client's own memory
    tau: float = 1.0
    steps: int = 500  # of Adam, at the server
    lr: float = 0.001

    def __post_init__(self) -> None:
        super().__post_init__()
        check("method.memory", self.memory, self.memory in ("own", "validation"), "own or validation")
        check("method.points", self.points, self.points >= 0, "at least 0")
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
            inputs = stored.new_zeros(clients, self.points * _classes(task), *stored.shape[1:])
        weight = nothing.new_zeros(clients, inputs.shape[1])
        example = predictions(task, task.initial, task.data.train.inputs[:1])
        labels = example.new_zeros(*weight.shape, *example.shape[1:])
        return Server(nothing, nothing, inputs, weight, labels, nothing.new_zeros(clients))

    def broadcast(self, server: Server) -> tuple[Tensor, ...]:
        """Memories travel once: as long as some client is unknown, whoever is active sends its own."""
        return (server.theta,) if bool(server.known.all()) else (server.theta, server.inputs)

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        known = bool(server.weight.any())
        recalling = cohort.steered(Recall(cohort, server)) if known else cohort
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
        chosen = [self._choose(task, client) for client in cohort.ids]
        labels = [predictions(task, row, inputs) for row, (inputs, _) in zip(theta, chosen, strict=True)]
        said = {"number": Gather(torch.tensor(cohort.ids) + 1), "labels": Gather(torch.stack(labels))}
        if not bool(server.known.all()):
            said["weight"] = Gather(torch.stack([weight for _, weight in chosen]))
            if self.memory == "own":
                said["inputs"] = Gather(torch.stack([inputs for inputs, _ in chosen]))
        return said

    def _choose(self, task: Task, client: int) -> tuple[Tensor, Tensor]:
        """A client's memory [M, ...] and its weights [M], the same whenever asked."""
        index = task.shards.of_client(client)
        if self.memory == "validation":
            assert task.data.validation is not None
            inputs = task.data.validation.inputs
            return inputs, task.initial.new_full((len(inputs),), self.tau * len(index) / len(inputs))
        train, order = task.data.train, stream(task.streams.seed, "memory", client)
        index = index[torch.randperm(len(index), generator=order)]
        label = train.targets[index].cpu() if _classes(task) > 1 else torch.zeros_like(index)
        slots = index.new_zeros(_classes(task), self.points)
        weight = task.initial.new_zeros(_classes(task), self.points)
        for c in range(len(slots)):
            own = index[label == c]
            taken = min(self.points, len(own))
            slots[c, :taken] = own[:taken]
            weight[c, :taken] = self.tau * len(own) / max(taken, 1)
        inputs = train.inputs[slots.flatten()]
        inputs[weight.flatten() == 0] = 0
        return inputs, weight.flatten()

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        duals = server.duals + total["dual_change"]
        server = server._replace(theta=duals / self.delta, duals=duals)
        if "labels" in total:
            server = _remember(server, total)
        return server._replace(theta=self._optimise(server, task)) if bool(server.weight.any()) else server

    def _optimise(self, server: Server, task: Task) -> Tensor:
        """Adam on Eq. 17 from Σ_k v_k/delta; the same on every rank."""
        solver, theta = adam.Solver(lr=self.lr), server.theta.clone().unsqueeze(0)
        state, inputs = solver.blank(1, task), recalled(server, task)
        term = Term(slice(None), *joined(server))
        for _ in range(self.steps):
            slope = memory_grad(task, theta, inputs, [(term,)]) + self.delta * theta - server.duals
            solver.step(theta, slope, state, self.lr)
        return theta[0]


class Term(NamedTuple):
    """Σ_i weight_i loss(label_i, w) over a part of the memories."""

    where: slice
    weight: Tensor  # [m]
    labels: Tensor  # [m, ...]


@dataclass
class Recall:
    """Adds Eq. 17's function terms to a cohort's gradients: all memories at the server's predictions, less its own."""

    cohort: Cohort
    server: Server

    def __call__(self, theta: Tensor, grad: Tensor, batch: Batch) -> Tensor:
        terms = [(self._everyone, self._own(client)) for client in self.cohort.ids[: len(theta)]]
        pull = memory_grad(self.cohort.task, theta, self._inputs, terms)
        return grad.add_(pull.div_(self.cohort.num_examples[: len(theta)].unsqueeze(1)))

    @cached_property
    def _inputs(self) -> Tensor:
        return recalled(self.server, self.cohort.task)

    @cached_property
    def _everyone(self) -> Term:
        labels = predictions(self.cohort.task, self.server.theta, self.server.inputs.flatten(0, 1))
        return Term(slice(None), joined(self.server)[0], labels)

    def _own(self, client: int) -> Term:
        size = self.server.weight.shape[1]
        where = slice(None) if len(self.server.inputs) == 1 else slice(client * size, (client + 1) * size)
        return Term(where, -self.server.weight[client], self.server.labels[client])


def recalled(server: Server, task: Task) -> Tensor:
    """All memories as model inputs [m, ...]."""
    return task.data.prepare(server.inputs.flatten(0, 1), task.dtype)


def joined(server: Server) -> tuple[Tensor, Tensor]:
    """Weights [m] and labels [m, ...] of all memories.

    Where clients share their inputs, each input has the mean of their labels: the losses here are linear in the
    label up to a constant, so the gradient is that of the sum over clients.
    """
    weight, labels = server.weight, server.labels
    if len(server.inputs) == len(weight):
        return weight.flatten(), labels.flatten(0, 1)
    total = weight.sum(0)
    return total, torch.einsum("km,km...->m...", weight / total.clamp_min(1e-30), labels)


def memory_grad(task: Task, theta: Tensor, inputs: Tensor, terms: Sequence[Sequence[Term]]) -> Tensor:
    """Gradient at theta [c, P] of each row's own sum of terms, without dropout; [c, P]."""

    def total(outputs: Tensor) -> Tensor:
        own = [(row, term) for row, some in enumerate(terms) for term in some]
        losses = [task.objective.loss(outputs[row, term.where], term.labels) for row, term in own]
        return torch.stack([term.weight @ loss for (_, term), loss in zip(own, losses, strict=True)]).sum()

    task.module.eval()
    chain = Chain.of(task.module, task.layout, task.objective)
    if chain is not None and chain.takes(inputs.unsqueeze(0)):
        return chain.pull(theta, inputs.expand(len(theta), *inputs.shape), total)
    with torch.enable_grad():
        leaf = theta.detach().requires_grad_()
        rows = [functional_call(task.module, task.layout.views(row), (inputs,)) for row in leaf]
        return torch.autograd.grad(total(torch.stack(rows)), leaf)[0]


def predictions(task: Task, theta: Tensor, stored: Tensor) -> Tensor:
    """Soft labels [m, ...] of stored inputs, as the objective takes targets."""
    if isinstance(task.objective, NextToken):
        raise ValueError("method.name=fedlap_func: predictions of text are not supported; choose another method")
    found = task.objective.probabilities(task.outputs(theta, stored)).to(task.dtype)
    return found[:, 1] if isinstance(task.objective, Binary) else found


def _remember(server: Server, total: Totals) -> Server:
    """Take up what active clients said; a client that was left out of the round has an empty row."""
    heard = total["number"] > 0
    ids = total["number"][heard] - 1
    new = {name: getattr(server, name).clone() for name in ("inputs", "weight", "labels", "known")}
    for name in ("inputs", "weight", "labels"):
        if name in total:
            new[name][ids] = total[name][heard]
    new["known"][ids] = 1
    return server._replace(**new)


def _classes(task: Task) -> int:
    return task.data.classes if task.data.classes and task.data.train.targets.dim() == 1 else 1
