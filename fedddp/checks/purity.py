"""Whether steps are pure: called again with the same inputs they give the same bits, and they change nothing else.

State hidden in `self`, in a global or in a random generator is neither in a checkpoint nor the same on all ranks: it
breaks resuming and makes results depend on the number of ranks.
"""

import io
import pickle
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.config.loading import Config
from fedddp.core import tree
from fedddp.core.task import Task
from fedddp.exchange.group import Exchange
from fedddp.exchange.messages import Gather, Mean, Message, Sum, Totals
from fedddp.rounds.method import Phase
from fedddp.runs.build import make_federation, make_task

CPU = torch.device("cpu")
ROUNDS = 2  # in the second there is something to remember


class Seen(NamedTuple):
    """What two rounds showed."""

    complaints: list[str]
    changed: list[str]  # of the clients' memory, in place: allowed, and yet worth a line
    fields: list[str]  # of the messages: name, reduction, shape
    bytes_up: float  # per client and round
    bytes_down: float
    bytes_kept: int  # per client


@dataclass
class Watch:
    """A method whose steps are each called twice; all else is the method's own."""

    method: Any
    complaints: dict[str, None] = field(default_factory=dict)  # in order, each once
    changed: dict[str, None] = field(default_factory=dict)
    fields: dict[str, None] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    def phase(self, server: Any, index: int) -> Phase | None:
        found = self.method.phase(server, index)
        if found is None:
            return None
        client_step = partial(self._client_step, found.client_step, f", exchange {index + 1}" if index else "")
        return Phase(client_step, partial(self._server_step, found.server_step), found.broadcast)

    def _client_step(
        self, step: Callable[..., Any], where: str, server: Any, clients: Any, cohort: Cohort, local: Any
    ) -> tuple[Any, Message]:
        again = Cohort(cohort.ids, cohort.round, cohort.task, cohort.oracle)
        given = {"server": server, "clients": clients}
        memory, message = self._call(step, given, local, cohort, local)
        second = self._call(step, given, local, again, local)
        for name, entry in message.items():
            self.fields[f"{_field(name, entry)}{where}"] = None
        self._compare(step, "clients", tree.leaves(memory), tree.leaves(second[0]))
        self._compare(step, "message", _tensors(message), _tensors(second[1]))
        return memory, message

    def _server_step(self, step: Callable[..., Any], server: Any, total: Totals, task: Task) -> Any:
        given = {"server": server}
        first, second = (
            self._call(step, given, None, {name: value.clone() for name, value in total.items()}, task)
            for _ in range(2)
        )
        self._compare(step, "server", tree.leaves(first), tree.leaves(second))
        return first

    def _call(self, step: Callable[..., Any], given: dict[str, Any], local: Any, *more: Any) -> Any:
        """The step's result for copies of what it is given; complaints, if it changes them or anything beside."""
        name = _name(step)
        copies = {key: tree.map_leaves(Tensor.clone, value) for key, value in given.items()}
        before, randomness = _hidden(self.method, local), _randomness()
        result = step(*copies.values(), *more)
        for kind, state in _randomness().items():
            if state != randomness[kind]:
                remedy = "cohort.noise() in client_step, task.streams in server_step"
                self._complain(f"{name} draws from {kind}'s global random state; take a stream of its own: {remedy}")
        for attribute in _changed(before, _hidden(self.method, local)):
            remedy = "keep it in the server's or the clients' memory"
            self._complain(f"{name} changes {attribute}, which no checkpoint and no other rank has; {remedy}")
        for key, value in given.items():
            for leaf in _differ(tree.leaves(value), tree.leaves(copies[key])):
                if key == "clients":  # harmless: the engine hands out a copy of their rows
                    self.changed[f"{key}.{leaf}"] = None
                else:
                    self._complain(f"{name} changes {key}.{leaf} in place; return a new one")
        return result

    def _compare(
        self, step: Callable[..., Any], what: str, first: dict[str, Tensor], second: dict[str, Tensor]
    ) -> None:
        for leaf in _differ(first, second):
            self._complain(f"{_name(step)} called again with the same inputs gives another {what}.{leaf}")

    def _complain(self, text: str) -> None:
        self.complaints[text] = None


def watch(config: Config) -> Seen:
    """Two rounds with every step called twice, in this process as a world of its own."""
    exchange = Exchange.connect(CPU)
    task = make_task(config, CPU)
    federation = make_federation(config, task, exchange)
    watched = Watch(federation.method)
    federation.method = watched  # type: ignore[assignment]  # it has all that a method has
    server, ups, downs = federation.method.init_server(task), 0.0, 0.0
    for number in range(ROUNDS):
        server, report = federation.round(server, number)
        ups, downs = ups + report.bytes_up, downs + report.bytes_down
    kept = sum(leaf.numel() * leaf.itemsize for leaf in tree.leaves(federation.store.memory).values())
    said = (list(watched.complaints), list(watched.changed), list(watched.fields))
    return Seen(*said, ups / ROUNDS, downs / ROUNDS, kept // len(federation.store.ids))


def _name(step: Callable[..., Any]) -> str:
    return getattr(step, "__name__", "a step")


def _field(name: str, entry: Sum | Mean | Gather) -> str:
    return f"{name}: {type(entry).__name__} {list(entry.value.shape[1:])}"


def _tensors(message: Message) -> dict[str, Tensor]:
    found = {name: entry.value for name, entry in message.items()}
    weights = {name: entry.weight for name, entry in message.items() if isinstance(entry, Mean)}
    return found | {f"{name} (its weight)": torch.as_tensor(weight) for name, weight in weights.items()}


def _differ(first: dict[str, Tensor], second: dict[str, Tensor]) -> list[str]:
    """The names of what has other bits."""
    return [name for name in {**first, **second} if not _same(first.get(name), second.get(name))]


def _same(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None or a.shape != b.shape or a.dtype != b.dtype:
        return False
    bits = [value.detach().contiguous().reshape(-1).view(torch.uint8) for value in (a, b)]  # NaN is no less itself
    return torch.equal(*bits)


def _hidden(method: Any, local: Any) -> dict[str, bytes]:
    """What the method and the solver hold beside their settings; a cached property follows from these."""
    found = {}
    for owner, part in (("self", method), ("local", local)):
        for name, value in vars(part).items() if part is not None else ():
            if not isinstance(getattr(type(part), name, None), cached_property):
                found[f"{owner}.{name}"] = _bytes(value)
    return found


class _Plain(pickle.Pickler):
    """Tensors by what they hold: torch's own pickles have an address in them."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, Tensor):
            return bytes, (value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes(),)
        return NotImplemented


def _bytes(value: Any) -> bytes:
    out = io.BytesIO()
    try:
        _Plain(out).dump(value)
    except Exception:  # not everything can be pickled
        return repr(value).encode()
    return out.getvalue()


def _changed(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    return [name for name in {**before, **after} if before.get(name) != after.get(name)]


def _randomness() -> dict[str, bytes]:
    states = {"torch": torch.get_rng_state(), "numpy": np.random.get_state(), "random": random.getstate()}
    return {kind: _bytes(state) for kind, state in states.items()}
