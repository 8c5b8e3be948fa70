"""How much memory a run takes of a device at most, found out before it begins; a device that is too small is refused.

A round of very few examples is run on the host while all that is made is counted, with two widths of a cohort; memory
is linear in the rows, so the widest cohort's follows. What the model makes of an example is counted on its own and
taken for a whole batch. Beside it stand what a rank always holds, and an evaluation:

    data + parameters + server + rows + max(round + activations + waiting sums, evaluation)

It is a bound of tensors: CUDA's own context, libraries' workspaces and an allocator's gaps come on top (RESERVE).
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedddp.clients.oracle import Oracle
from fedddp.config.loading import Config
from fedddp.core import tree
from fedddp.core.data import Dataset
from fedddp.core.live import Live
from fedddp.core.model import call
from fedddp.core.shards import Shards
from fedddp.core.task import Task
from fedddp.evaluation.predictions import chunk_size, predict
from fedddp.exchange.alone import Alone
from fedddp.exchange.reduce import MOST_SCALES
from fedddp.rounds.failures import Failed
from fedddp.rounds.federate import HEAD, Federation
from fedddp.rounds.method import Method
from fedddp.rounds.store import ClientStore
from fedddp.runs.build import WIDTHS, cohort_width, make_method, make_oracle, make_plan, make_task, micro_batch

FEW = 4  # examples of a client in the round that is tried
LIMIT = 20_000  # operations, after which a server's loop has shown what it holds
MANY = 256  # examples in a gradient that is tried
MARGIN = 1.1  # for what is not linear
RESERVE = 0.9  # share of a device's memory that tensors may take
ORDERING = 7 * 8  # bytes for an example of a client and an epoch, while orders are drawn, which is before any gradient
EVERYTHING = 1024  # examples at a time where a client looks at all it has: Cohort.everything
GPU = torch.device("cuda")
MB, GB = 1e6, 1e9


PARTS = ("data", "parameters", "server", "rows", "round", "activations", "waiting")


class Enough(Exception):
    """The trial has run long enough."""


class Looked(Dataset):
    """Data that notices whether a client looks at all its examples rather than at batches."""

    def near(self, index: Tensor, device: torch.device) -> Any:
        if index.dim() == 2:
            LOOKS.append(1)
        return super().near(index, device)


LOOKS: list[int] = []


@dataclass(frozen=True)
class Trial:
    """A round of few examples."""

    peak: int  # bytes beside what is there between rounds
    words: int  # int64 of the exchange
    everything: bool  # whether a client looked at all its examples at once


@dataclass(frozen=True)
class Footprint:
    """Bytes on the device, by what they are for."""

    data: int  # training examples at home, or two batches of them; and test examples
    parameters: int  # the model's own, its start, and what of it is frozen
    server: int
    rows: int  # of the clients at home
    round: int  # the widest cohort's step, the exchange, the server's step
    activations: int
    waiting: int  # sums of the rank's other cohorts
    evaluation: int
    width: int

    @property
    def total(self) -> int:
        always = self.data + self.parameters + self.server + self.rows
        return int(MARGIN * (always + max(self.round + self.activations + self.waiting, self.evaluation)))

    def line(self) -> str:
        parts = {name: getattr(self, name) for name in PARTS}
        told = " + ".join(f"{name} {_bytes(size)}" for name, size in parts.items() if size)
        return f"{_bytes(self.total)} = {told} (or evaluation {_bytes(self.evaluation)}), cohorts of {self.width}"


def footprint(config: Config, task: Task, ranks: int, place: str) -> Footprint:
    """Of the rank that needs most; `task` is on the host, and `place` where examples are kept."""
    config = _as_there(config, task)
    plan, local = make_plan(config, task, ranks), config.local
    epochs, batch = local.passes()
    sizes = task.num_examples
    width = min(plan.width, task.num_clients)
    method = make_method(config, task)
    server = method.init_server(task)
    one = method.init_clients(1, task, local)
    row, remembers = _size(one), bool(tree.leaves(one))
    home = torch.bincount(plan.home, weights=sizes.double(), minlength=ranks).max()
    clients = int(torch.bincount(plan.home, minlength=ranks).max())
    largest = int(sizes.max())
    example = task.data.train.nbytes / max(len(task.data.train), 1)
    tried = _trial(config, task, width)
    seen = min(batch, largest)
    if tried.everything:
        seen = max(seen, min(EVERYTHING, largest))
    together = min(seen, micro_batch(config) or seen)
    stacked = width if config.federation.vectorise else 1
    tables = width * largest * epochs * (8 + task.dtype.itemsize)  # of indices, and of weights
    ordering = 0 if place == "host" else width * largest * epochs * ORDERING
    brought = 0 if remembers or place == "host" else int(width * largest * example)  # a cohort from elsewhere
    cohorts = -(-max(1, round(config.federation.participation * task.num_clients)) // width)
    waits = 0 if config.federation.rows != "device" else max(0, -(-cohorts // ranks) - 2)  # two were tried
    at_home = int(float(home) * example) + task.data.test.nbytes
    data = 2 * int(width * seen * example) if place == "host" else at_home
    more = _activations(config, task, width)
    held = 0 if task.data.validation is None else task.data.validation.nbytes
    return Footprint(
        data=data + held,
        parameters=2 * task.layout.numel * task.dtype.itemsize + _frozen(task),
        server=_size(server),
        rows=clients * row if config.federation.rows == "device" else 0,
        round=tried.peak + _size(server) + tables + brought,
        activations=max(ordering, int(more * stacked * max(0, together - FEW)) + 2 * width * seen * _input(task)),
        waiting=waits * tried.words * task.dtype.itemsize,
        evaluation=_evaluation(config, task, method, server),
        width=width,
    )


def _as_there(config: Config, task: Task) -> Config:
    """With the cohort width that the rule gives for a GPU, where the rule is asked for."""
    width = config.federation.cohort_width
    if isinstance(width, int) and width == 0:
        width = cohort_width(config, replace(task, device=GPU))
    if width == "auto":
        width = config.federation.measured_width or min(WIDTHS[-1], task.num_clients)
    return replace(config, federation=replace(config.federation, cohort_width=width, measured_width=0))


def place(config: Config, device: torch.device, ranks: int, sharing: int = 1) -> str:
    """Where a rank keeps its examples: as data.place says, or for auto on the device if they fit there.

    `sharing`: ranks on this device. A run that does not fit either way is refused.
    """
    wanted: str = config["data.place"]
    if device.type != "cuda":
        return "device" if wanted == "auto" else wanted
    room = int(RESERVE * torch.cuda.mem_get_info(device)[0] / sharing)
    return choose(config, make_task(config, torch.device("cpu")), ranks, room)


def choose(config: Config, task: Task, ranks: int, room: int) -> str:
    """The place that fits into `room` bytes; a line that names what helps where none does."""
    found, place = {}, config["data.place"]
    for option in ("device", "host") if place == "auto" else (place,):
        found[option] = footprint(config, task, ranks, option)
        if found[option].total <= room:
            return option
    least = min(found.values(), key=lambda one: one.total)
    raise ValueError(
        f"this run takes up to {least.line()} of a device, where {_bytes(room)} are free for it; what helps: "
        + "; ".join(remedies(config, least))
    )


def remedies(config: Config, least: Footprint) -> list[str]:
    """What helps most first."""
    settings = config.federation
    ways = {
        f"federation.cohort_width={max(1, least.width // 2)} computes fewer clients together": (
            least.round + least.activations if least.width > 1 else 0
        ),
        "data.place=host keeps examples in the host's memory": least.data if config["data.place"] == "device" else 0,
        "federation.rows=host keeps client memory and waiting sums there": (
            least.rows + least.waiting if settings.rows == "device" else 0
        ),
        "a smaller local.batch_size takes fewer activations": least.activations,
        "more ranks (GPUs) share clients": least.rows + least.data,
    }
    return [way for way, size in sorted(ways.items(), key=lambda item: -item[1]) if size > 0]


def _trial(config: Config, task: Task, width: int) -> Trial:
    """The widest cohort's round, from two narrower ones."""
    if width <= 2:
        return _round(config, task, width)
    low, high = (_round(config, task, rows) for rows in (2, min(4, width)))
    rows = min(4, width) - 2

    def at(first: int, second: int) -> int:
        return first + (width - 2) * max(0, second - first) // rows

    return Trial(at(low.peak, high.peak), at(low.words, high.words), low.everything)


def _round(config: Config, task: Task, rows: int) -> Trial:
    """A round of cohorts of so many clients, each with a few examples, on the host."""
    clients = 2 * rows  # in two cohorts: what the first leaves behind is there when the second is at work
    shards = Shards(torch.arange(clients * FEW) % len(task.data.train), torch.arange(clients + 1) * FEW)
    data = Looked(**vars(task.data))
    small = replace(task, data=data, shards=shards)
    method = make_method(config, small)
    store = ClientStore.make(torch.arange(clients), lambda n: method.init_clients(n, small, config.local))
    plan = make_plan(replace(config, federation=replace(config.federation, cohort_width=rows)), small, 1)
    server = method.init_server(small)
    LOOKS.clear()

    def enough() -> None:
        raise Enough

    federation = Federation(small, method, config.local, Alone(), plan, store, _oracle(config, small))
    with Live(LIMIT, enough) as live:
        words = 0
        with suppress(Enough, Failed):  # few examples may be too few for a method; what it holds was seen
            words = federation.round(server, 0)[1].bytes // 8 - HEAD - MOST_SCALES
    return Trial(live.ledger.most, max(words, task.layout.numel), bool(LOOKS))


def _activations(config: Config, task: Task, width: int) -> float:
    """Bytes that a gradient takes for one more example of one client.

    Asked with so many examples that these and not the parameters are most of it.
    """
    oracle = _oracle(config, task)
    oracle.micro = 0  # of all that are asked for
    rows = 2 if width > 1 and config.federation.vectorise else 1
    count = max(FEW, min(MANY, 4 * task.layout.numel * task.dtype.itemsize // max(saved(task), 1)))

    def peak(examples: int) -> int:
        index = (torch.arange(rows * examples) % len(task.data.train)).view(rows, examples)
        inputs, targets = task.data.gather(index, task.dtype)
        buffers = None if task.state is None else task.state.expand(rows, -1).clone()
        with Live() as live:
            oracle(task.initial.expand(rows, -1).clone(), inputs, targets, buffers=buffers)
        return live.ledger.most

    return max(0, peak(2 * count) - peak(count)) / (rows * count)


def saved(task: Task) -> int:
    """Bytes that autograd keeps of one example, at least."""
    saved, own = {}, task.initial.clone().requires_grad_()

    def pack(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage().data_ptr() != own.untyped_storage().data_ptr():
            saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    inputs = task.data.prepare(task.data.train.inputs[:1], task.dtype)
    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = call(task.module, task.layout.views(own), inputs)
    del kept
    return sum(saved.values())


def _oracle(config: Config, task: Task) -> Oracle:
    return make_oracle(replace(config, federation=replace(config.federation, graphs=False)), task)


def _frozen(task: Task) -> int:
    return sum(own.nbytes for own in task.module.parameters() if not own.requires_grad)


def _input(task: Task) -> int:
    """Bytes of one example as the model sees it, with its target."""
    size = torch.Size(task.data.input_shape).numel() * task.dtype.itemsize
    return size + task.data.train.targets[:1].nbytes


def _evaluation(config: Config, task: Task, method: Method[Any, Any, Any], server: Any) -> int:
    """A chunk of the test set through one model, and that model if it is a sample."""
    examples, size = task.data.test, min(chunk_size(task, task.data.test), len(task.data.test))
    sampled = 4 * task.layout.numel if config.evaluation.samples and method.posterior(server) is not None else 0

    def peak(count: int) -> int:
        with Live() as live:
            task.objective.tally(*predict(task, task.start.unsqueeze(0), examples, slice(0, count)))
        return live.ledger.most

    count = max(1, min(8, size // 2))
    low, high = peak(count), peak(min(2 * count, size))
    return low + (size - count) * max(0, high - low) // max(1, min(count, size - count)) + sampled * task.dtype.itemsize


def _size(state: Any) -> int:
    return sum(leaf.untyped_storage().nbytes() for leaf in tree.leaves(state).values())


def _bytes(size: float) -> str:
    return f"{size / GB:.2f} GB" if size >= GB else f"{size / MB:.1f} MB"
