"""What a GPU would be asked to do in a local step: kernels, copies to it, numbers read back; counted, not timed.

A round runs on the pretended device of `fedddp check`, where every operation is seen. Counted with few and with many
local steps, the difference is what each step costs, and the rest is the round's own. A kernel is an operation on the
device that computes; views and fresh memory are none.
"""

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_leaves

from fedddp.checks import pretend, small
from fedddp.checks.ranks import apart
from fedddp.clients.noise import quantiles
from fedddp.config.loading import Config
from fedddp.core import kernels
from fedddp.core.trace import PACKAGE
from fedddp.exchange.group import Exchange
from fedddp.runs.build import make_federation, make_task

aten = torch.ops.aten
FEW, MANY = 1, 3  # epochs
FREE = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "detach", "alias", "lift_fresh"}
FREE |= {"_unsafe_view"}  # a view that does not say so
WAITS = {"nonzero", "masked_select", "unique", "_unique2", "unique_consecutive", "unique_dim"}  # sizes come back
MLP = ["model.name=mlp", "model.hidden=[12]", "federation.rounds=1"]


@dataclass
class Count:
    """What was asked of the device."""

    kernels: int = 0
    copies: Counter[str] = field(default_factory=Counter)  # to the device, by the line that asks for it
    reads: Counter[str] = field(default_factory=Counter)  # numbers that the host waits for
    names: Counter[str] = field(default_factory=Counter)  # kernels by their operation

    def watch(self, function: Any, given: Any, result: Any) -> None:
        name = function.__name__.partition(".")[0]
        there = [_here(x) for x in tree_leaves(given) if isinstance(x, Tensor)]
        made = [_here(x) for x in tree_leaves(result) if isinstance(x, Tensor)]
        if name in ("_to_copy", "copy_", "_foreach_copy_") and True in (*there, *made) and False in (*there, *made):
            kind = self.reads if (made and not made[0]) else self.copies
            kind[_line()] += 1
        elif function in pretend.NUMBERS and True in there:
            self.reads[_line()] += 1
        elif (True in there or True in made) and not function.is_view and name not in FREE:
            self.kernels += 1
            self.names[name] += 1
            if name in WAITS:
                self.reads[_line()] += 1

    def launch(self, name: str, *arguments: Any) -> None:
        """A fused kernel: one launch, whatever the stand-in for it does on the CPU."""
        self.kernels += 1
        self.names[name] += 1
        with no_dispatch():
            kernels.in_c(name, *(x.held if isinstance(x, pretend.Pretend) else x for x in arguments))


class Row(NamedTuple):
    """What a local step of a cohort asks for, and what a round does beside its steps."""

    kernels: float
    copies: float
    reads: float
    round_kernels: float
    round_copies: float
    round_reads: float
    lines: dict[str, float]  # copies and reads of a step, by the line that asks for them
    names: dict[str, float]  # kernels of a step, by their operation


def _here(tensor: Tensor) -> bool:
    return tensor.device.type == pretend.NAME


def _line() -> str:
    """The innermost line outside of torch and of the counting."""
    frame, own = sys._getframe(2), (__file__, pretend.__file__)
    while frame.f_back is not None:
        name = frame.f_code.co_filename
        if name not in own and "/torch/" not in name:
            path = Path(name)
            inside = PACKAGE.parent in path.parents
            return f"{path.relative_to(PACKAGE.parent) if inside else path}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


def count(cases: Sequence[Sequence[str]], fused: bool = True) -> list[Row]:
    """A row for each case's settings; `fused`: with Triton's kernels. In a process of its own: the pretended device
    changes torch for good."""
    return cast(list[Row], apart(partial(_count, cases, fused))[0])


def _count(cases: Sequence[Sequence[str]], fused: bool) -> list[Row]:
    device, exchange = pretend.install(), Exchange.connect(torch.device("cpu"))
    with pretend.Device():
        quantiles(device)  # is sent once for all runs of a process
    rows = []
    for words in cases:
        configs = [small.load(words, *MLP, f"local.epochs={epochs}") for epochs in (FEW, MANY)]
        rows.append(_row(*(_round(config, device, exchange, fused) for config in configs)))
    return rows


def _row(low: tuple["Count", int], high: tuple["Count", int]) -> Row:
    """What each step costs is the difference; what is left, the round's own."""
    (few, steps_few), (many, steps_many) = low, high
    steps = max(steps_many - steps_few, 1)

    def each(before: Counter[str], after: Counter[str]) -> dict[str, float]:
        found = {name: (after[name] - before[name]) / steps for name in {*before, *after}}
        return {name: value for name, value in sorted(found.items(), key=lambda item: -item[1]) if value > 0}

    totals = [(few.kernels, many.kernels), (few.copies.total(), many.copies.total())]
    totals.append((few.reads.total(), many.reads.total()))
    slopes = [(after - before) / steps for before, after in totals]
    rests = [before - slope * steps_few for (before, _), slope in zip(totals, slopes, strict=True)]
    lines = each(few.copies, many.copies) | each(few.reads, many.reads)
    return Row(*slopes, *rests, lines, each(few.names, many.names))  # type: ignore[call-arg, arg-type]


def _round(config: Config, device: torch.device, exchange: Exchange, fused: bool) -> tuple[Count, int]:
    """One round on the device: what it was asked to do, and how many local steps cohorts took."""
    seen = Count()
    kernels.BACKENDS.pop(pretend.NAME, None)
    if fused:
        kernels.BACKENDS[pretend.NAME] = seen.launch
    with pretend.Device():
        task = make_task(config, device)
        federation = make_federation(config, task, exchange)
        server = federation.method.init_server(task)
        with pretend.Device(seen.watch):
            _, report = federation.round(server, 0)
    epochs, size = config.local.passes()
    largest = [max(int(task.num_examples[client]) for client in cohort.ids) for cohort in report.cohorts]
    return seen, sum(epochs * -(-examples // size) for examples in largest)
