"""Layers that each client keeps for itself: method.personal=[names], around any method (FedPer, FedRep).

    FedPer (Arivazhagan et al. 2019)   own_k <- own_k - lr gradient_own      in every local step, beside the solver's
    FedRep (Collins et al. 2021)       own_k <- personal_epochs of such steps alone, then the rest with own_k fixed

The method and the solver see a model that has the shared parameters only, so what they send, add up and remember has no
others: own_k [Q] is client memory, kept, resumed and resharded like all of it, and never sent. Gradients, losses and
curvature are those of the whole model, with each client's own layers put in. A server has no whole model to look at: a
method that would need one says why it cannot have them (Method.undivided). Reconstructed from the definitions.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from fedddp.clients.cohort import Batch, Cohort
from fedddp.clients.oracle import NO_MASKS, Oracle
from fedddp.core.check import check, check_count, hint, shown
from fedddp.core.params import Layout, trained
from fedddp.core.rng import key
from fedddp.core.task import Task
from fedddp.exchange.messages import Message, Totals
from fedddp.rounds.around import Around
from fedddp.rounds.iterative import Iterative
from fedddp.rounds.method import Method, Phase
from fedddp.rounds.solver import Solver


@dataclass
class PersonalSettings:
    """Keys of the section method beside a method's own."""

    personal: list[str] = field(default_factory=list)  # layers (names or classes) that clients keep, never sent
    personal_lr: float = 0.0  # learning rate of their plain gradient steps, at least 0; 0: local.lr
    personal_epochs: int = 0  # epochs that they are trained alone, before the rest with them fixed; 0: together

    def __post_init__(self) -> None:
        check("method.personal_lr", self.personal_lr, self.personal_lr >= 0, "at least 0")
        check_count("method.personal_epochs", self.personal_epochs, least=0)


class Clients(NamedTuple):
    method: Any  # what the method's clients remember
    own: Tensor  # [C, Q] the parameters of their own layers


@dataclass(frozen=True)
class Division:
    """Which of the model's parameters are shared, and which each client's own."""

    shared: Tensor  # [P - Q] places in the whole vector
    own: Tensor  # [Q]
    layout: Layout  # of the shared ones

    @classmethod
    def of(cls, layout: Layout, names: Sequence[str]) -> "Division":
        for name in names:
            if not any(_begins(parameter, name) for parameter in layout.names):
                layers = {parameter.rpartition(".")[0] or parameter for parameter in layout.names}
                raise ValueError(f"method.personal={shown(name)}: no layer of the model; {hint(name, layers)}")
        mine = [any(_begins(parameter, name) for name in names) for parameter in layout.names]
        if all(mine):
            raise ValueError("method.personal: names all of the model, so nothing is shared; method=local is that")
        places, kept = layout.slices(), [n for n, own in zip(layout.names, mine, strict=True) if not own]
        shapes = dict(zip(layout.names, layout.shapes, strict=True))
        index = {n: torch.arange(places[n].start, places[n].stop) for n in layout.names}
        own = torch.cat([index[n] for n, one in zip(layout.names, mine, strict=True) if one])
        return cls(torch.cat([index[n] for n in kept]), own, Layout(tuple(kept), tuple(shapes[n] for n in kept)))

    def join(self, theta: Tensor, own: Tensor) -> Tensor:
        """[c, P] of shared and own parameters."""
        whole = theta.new_empty(*own.shape[:-1], len(self.shared) + len(self.own))
        whole[..., self.shared] = theta.expand(*own.shape[:-1], -1)
        whole[..., self.own] = own
        return whole


class Within(Oracle):
    """The oracle of the whole model as one of the shared parameters, at the cohort's own layers [C, Q]."""

    def __init__(self, whole: Oracle, division: Division, own: Tensor) -> None:
        self.whole, self.division, self.own = whole, division, own
        self.dropout, self.slope = whole.dropout, torch.zeros_like(own)
        self.moves = 0  # of the own layers

    def __call__(
        self,
        theta: Tensor,
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor | None = None,
        counts: Sequence[int] | None = None,
        out: Tensor | None = None,
        masks: Mapping[str, Tensor] = NO_MASKS,
        buffers: Tensor | None = None,
        learn: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """As the whole model's; the own layers' part of the gradient stays here, in `slope`."""
        more = {"masks": masks, "buffers": buffers, "learn": learn}
        grad, loss = self.whole(self.at(theta), inputs, targets, weights, counts, **more)  # type: ignore[arg-type]
        self.slope[: len(theta)] = grad[:, self.division.own]
        shared = grad[:, self.division.shared]
        return (shared if out is None else out.copy_(shared)), loss

    def lowers(self, inputs: Tensor) -> bool:
        """Never: the own layers move with every gradient."""
        return False

    def move(self, rows: int, lr: float) -> None:
        """A plain step on the own layers of the first clients, by the last gradient."""
        self.own[:rows].sub_(self.slope[:rows], alpha=lr)
        self.moves += 1

    def at(self, theta: Tensor) -> Tensor:
        return self.division.join(theta, self.own[: len(theta)])


@dataclass
class Insider(Cohort):
    """A cohort whose own layers move with every gradient that a solver asks for; `lr` 0: they are fixed."""

    outer: Cohort | None = None  # that of the whole model
    lr: float = 0.0

    def grad(self, theta: Tensor, batch: Batch, out: Tensor | None = None) -> Tensor:
        found = super().grad(theta, batch, out)
        assert isinstance(self.oracle, Within)
        if self.lr:
            self.oracle.move(len(theta), self.lr)
        return found

    def whole(self, theta: Tensor) -> tuple[Cohort, Tensor]:
        assert isinstance(self.oracle, Within)
        assert self.outer is not None
        return self.outer, self.oracle.at(theta)

    def shared(self, found: Tensor, axes: int = 1) -> Tensor:
        assert isinstance(self.oracle, Within)
        for axis in range(-axes, 0):
            found = found.index_select(axis, self.oracle.division.shared.to(found.device))
        return found

    def part(self, rows: Tensor, member: int = 0) -> Cohort:
        raise ValueError(
            "method.personal: not with local.name=ivon_opt, with federation.fits, or with a method of several models "
            "for each client, of which nobody could say to which its own layers belong; choose another"
        )

    def _sum_loss(self, theta: Tensor, batch: Batch) -> Tensor:
        assert isinstance(self.oracle, Within)
        assert self.outer is not None
        return self.outer._sum_loss(self.oracle.at(theta), batch)


class Closed(nn.Module):
    """Stands for the model where only its shared part is known: it names shared layers, and nobody can call it."""

    def __init__(self, module: nn.Module, layout: Layout) -> None:
        super().__init__()
        self._shared = tuple(_shared_layers(module, layout))  # in a tuple, where torch does not look for submodules

    def named_modules(self, *_: object, **__: object) -> Iterator[tuple[str, nn.Module]]:
        yield from self._shared

    def _refuse(self, *_: object, **__: object) -> Any:
        raise ValueError(
            "method.personal: this needs the whole model at the server, which knows its shared layers only; choose "
            "settings without it, or a method that asks clients for gradients, losses and curvature alone"
        )

    forward = modules = parameters = named_parameters = _refuse


def _shared_layers(module: nn.Module, layout: Layout) -> Iterator[tuple[str, nn.Module]]:
    """Layers that have parameters, all of them shared."""
    for name, layer in module.named_modules():
        own = [f"{name}.{parameter}" if name else parameter for parameter in trained(layer)]
        if own and all(parameter in layout.names for parameter in own):
            yield name, layer


class Personal(Around):
    """A method whose clients have layers of their own."""

    _holds: ClassVar[tuple[type, ...]] = (Clients,)
    settings: PersonalSettings
    module: nn.Module  # the whole model
    layout: Layout  # its own
    initial: Tensor  # [P] its start

    @cached_property
    def _division(self) -> Division:
        return Division.of(self.layout, self.settings.personal)

    @cached_property
    def _closed(self) -> Closed:
        return Closed(self.module, self._division.layout)

    def _task(self, task: Task) -> Task:
        """The same task with a model of the shared parameters."""
        division = self._division
        return replace(task, module=self._closed, layout=division.layout, initial=task.initial[division.shared])

    def init_clients(self, count: int, task: Task, local: Any) -> Clients:
        own = task.initial[self._division.own].repeat(count, 1)
        return Clients(super().init_clients(count, task, local), own)

    def client_step(self, server: Any, clients: Clients, cohort: Cohort, local: Any) -> tuple[Clients, Message]:
        return self._step(self.method.client_step, True, True, server, clients, cohort, local)

    def phase(self, server: Any, index: int) -> Phase | None:
        phase = self.method.phase(server, index)
        if phase is None:
            return None
        given = phase

        def serve(server: Any, total: Totals, task: Task) -> Any:
            return given.server_step(server, total, self._task(task))

        first = index == 0
        only = first and self.method.phase(server, 1) is None
        return Phase(partial(self._step, phase.client_step, first, only), serve, phase.broadcast)

    def _step(
        self,
        step: Callable[..., tuple[Any, Message]],
        first: bool,
        only: bool,  # exchange of this round
        server: Any,
        clients: Clients,
        cohort: Cohort,
        local: Any,
    ) -> tuple[Clients, Message]:
        together = not self.settings.personal_epochs
        lr = self.settings.personal_lr or (local.rate(cohort) if isinstance(local, Iterative) else 0.0)
        oracle = Within(cohort.oracle, self._division, clients.own.clone())
        if first and not together:
            self._alone(server.theta, cohort, oracle, local, lr)
        inner = Insider(
            cohort.ids,
            cohort.round,
            self._task(cohort.task),
            oracle,
            tally=cohort.counted,
            ends=cohort.ends,
            state=cohort.state,
            outer=cohort,
            lr=lr if together else 0.0,
        )
        memory, message = step(server, clients.method, inner, local)
        if only and not oracle.moves:
            raise ValueError(
                "method.personal_epochs=0: must be at least 1 where method and solver make no steps on batches, beside "
                "which the personal layers could move"
            )
        return Clients(memory, oracle.own), message

    def _alone(self, theta: Tensor, cohort: Cohort, oracle: Within, local: Any, lr: float) -> None:
        """FedRep's first part: the own layers at the server's others."""
        streams = replace(cohort.task.streams, seed=key(cohort.task.streams.seed, "personal layers"))
        apart = replace(cohort, task=replace(cohort.task, streams=streams), tally=None, oracle=oracle)
        for batch in apart.batches(self.settings.personal_epochs, local.passes()[1]):
            rows = len(batch.inputs)
            apart.grad(theta.expand(rows, -1), batch)
            oracle.move(rows, lr)

    def models(self, server: Any) -> Tensor:
        """With the own layers as they started: nobody else's are known at the server."""
        found, own = super().models(server), self.initial[self._division.own]
        return self._division.join(found, own.to(found).expand(len(found), -1))

    def posterior(self, server: Any) -> None:
        """The method's is over the shared parameters only."""

    def own_models(self, server: Any, clients: Clients) -> Tensor:
        return self._division.join(server.theta.to(clients.own), clients.own)


def personalised(method: Method[Any, Any, Any], settings: PersonalSettings, task: Task) -> Method[Any, Any, Any]:
    """The method as it is, or with layers of each client's own."""
    if not settings.personal:
        return method
    settings = replace(settings, personal=_layers(task.module, settings.personal))
    return Personal(method, settings, task.module, task.layout, task.initial)


def _layers(module: nn.Module, names: Sequence[str]) -> list[str]:
    """Names as they are, and in place of a class, such as BatchNorm2d, those of all layers of it."""
    of: dict[str, list[str]] = {type(layer).__name__: [] for layer in module.modules()}
    for name, layer in module.named_modules():
        of[type(layer).__name__].append(name)
    layers = dict(module.named_modules())
    return [found for name in names for found in ([name] if name in layers else of.get(name, [name]))]


def refuse(method: Method[Any, Any, Any], name: str, local: Solver, settings: PersonalSettings) -> None:
    """An error where clients of the method `name` cannot have layers of their own."""
    if not settings.personal:
        return
    models = "" if type(method).own_models is Method.own_models else "whose clients have models of their own"
    if why := method.undivided or models:
        raise ValueError(f"method.personal: not for method={name}, {why}; leave it out")
    rate = settings.personal_lr > 0 or isinstance(local, Iterative)
    check("method.personal_lr", settings.personal_lr, rate, "above 0 for a solver without local.lr")


def _begins(parameter: str, name: str) -> bool:
    """A layer, or a parameter: head is head.weight and head.bias, and not header.weight."""
    return parameter == name or parameter.startswith(f"{name}.")
