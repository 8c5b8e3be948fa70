"""Local steps as CUDA graphs: federation.graphs=true.

A whole step (the batch's gather, crops, noise, gradient, site, clipping, update, tally) is recorded once for each shape
it takes, which is how many rows are at work and whether a batch is short, and replayed on buffers that stay where they
are. A counter on the device says which step it is: between two replays the host does nothing but ask for the next.

A *program* is what fits share that differ in numbers only: their buffers and their recordings. It outlives a fit, so
later cohorts and rounds record nothing; that of a cohort whose gradients a method turns, or which brought its examples
along, lasts as long as its fit, because it reads tensors that last no longer.
"""

from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from fedddp.clients.noise import quantiles
from fedddp.core.data import Examples
from fedddp.core.record import WARM, Record, Replay

if TYPE_CHECKING:
    from fedddp.clients.cohort import Cohort
    from fedddp.clients.schedule import Schedule

KEPT = 4  # programs: each holds the buffers of a cohort
S = TypeVar("S")


class Now(NamedTuple):
    """Where in its fit a step is."""

    number: int | Tensor  # of the step; while a graph is recorded, a counter on the device, int64 [1]
    rows: tuple[Tensor, ...] = ()  # [c, ...] of the tables that the solver gave


class Work(NamedTuple):
    """What a solver asks for: body(cohort, rows of state, batch, now) in every step, which changes its rows in place.

    The body may look at its arguments, at the solver's settings and at what `same` is made of, and at nothing else.
    """

    body: Callable[..., None]
    state: Any  # NamedTuples of tensors [C, ...] and Nones
    tables: tuple[Tensor, ...] = ()  # [steps, C, ...] numbers that differ from step to step
    same: Hashable = None  # fits that are equal in it may share recordings; None: not to be recorded


class Shape(NamedTuple):
    rows: int
    short: bool


class Graphs:
    def __init__(self, record: Record) -> None:
        self.record = record
        self.programs: dict[Hashable, Program] = {}

    def run(
        self, cohort: "Cohort", work: Work, schedule: "Schedule", watch: Callable[[int, Any], None] | None = None
    ) -> None:
        """As Cohort.descend does it eagerly, with the same bits."""
        source, index = schedule.source, schedule.table
        held = cohort.task.data.held
        lasts = cohort.turn is None and (
            cohort.task.device.type == "cpu" or (held is not None and source is held.examples)
        )
        key = (work.same, cohort.ends, index.shape[1:], id(source), id(cohort.oracle), _signature(work))
        program = self.programs.pop(key, None) if lasts else None
        if program is None or len(program.index) < len(index):
            program = Program(cohort, work, index, source)
        if lasts:
            self.programs[key] = program  # now the youngest
            for old in list(self.programs)[:-KEPT]:
                del self.programs[old]
        program.run(cohort, work, schedule, self.record, watch)


class Program:
    """Buffers, and a recording for each shape."""

    def __init__(self, cohort: "Cohort", work: Work, index: Tensor, source: Examples) -> None:
        task, steps = cohort.task, max(len(index), cohort.most_steps(index), WARM + 1)
        device, self.body, self.source = task.device, work.body, source
        self.state = tree_map(lambda leaf: torch.zeros_like(leaf) if isinstance(leaf, Tensor) else leaf, work.state)
        self.tables = [table.new_ones(steps, *table.shape[1:]) for table in work.tables]
        self.index = torch.zeros(steps, *index.shape[1:], dtype=torch.int64, device=device)
        self.weights = torch.ones(steps, *index.shape[1:], dtype=task.dtype, device=device)
        self.counter = torch.zeros(1, dtype=torch.int64, device=device)
        self.crops = cohort.crops()
        self.cohort = replace(cohort, tally=None, parts=[], graphs=None).held()
        self.replays: dict[Shape, tuple[Replay, Tensor]] = {}

    def run(
        self,
        cohort: "Cohort",
        work: Work,
        schedule: "Schedule",
        record: Record,
        watch: Callable[[int, Any], None] | None,
    ) -> None:
        tally = cohort.counted
        shapes = [Shape(rows, schedule.short(step)) for step, rows in enumerate(schedule.working)]
        for shape in dict.fromkeys(shapes):
            if shape not in self.replays:
                self._load(cohort, work, schedule)
                self.replays[shape] = self._record(shape, record, cohort.turn is None)
        self._load(cohort, work, schedule)
        for step, shape in enumerate(shapes):
            replay, grads = self.replays[shape]
            replay()
            tally.steps.add_(grads)
            if watch is not None:
                watch(step, rows_of(self.state, shape.rows))
        _copy(work.state, self.state)
        tally.join(self.cohort.counted)
        cohort.drew(sum(int(self.replays[shape][1][0]) for shape in shapes))

    def _load(self, cohort: "Cohort", work: Work, schedule: "Schedule") -> None:
        """The fit's numbers into the buffers; a recording's first calls leave their own there."""
        index = schedule.table
        _copy(self.state, work.state)
        for mine, given in zip([*self.tables, self.index], [*work.tables, index], strict=True):
            mine[: len(given)].copy_(given)
        if schedule.weights.numel():
            self.weights[: len(index)].copy_(schedule.weights)
        self.counter.zero_()
        if self.crops is not None:
            self.crops.keys.copy_(torch.tensor(cohort.keys("augment")))
        self.cohort.take(cohort)

    def _record(self, shape: Shape, record: Record, closed: bool) -> tuple[Replay, Tensor]:
        """The recording and how many gradients of each row it counts [C]."""
        reads = list(self._reads()) if closed else None
        replay = record(lambda: self._step(shape), reads)
        return replay, self.cohort.counted.steps.clone()

    def _step(self, shape: Shape) -> None:
        from fedddp.clients.cohort import Batch

        task = self.cohort.task
        self.cohort.counted.steps.zero_()
        index, weights, *rows = (
            table.index_select(0, self.counter)[0, : shape.rows] for table in (self.index, self.weights, *self.tables)
        )
        inputs, targets = task.data.gather(index, task.dtype, source=self.source)
        inputs = inputs if self.crops is None else self.crops(inputs, self.counter)
        batch = Batch(inputs, targets, weights if shape.short else None)
        self.body(self.cohort, rows_of(self.state, shape.rows), batch, Now(self.counter, tuple(rows)))
        self.counter.add_(1)

    def _reads(self) -> list[Tensor]:
        """All tensors that are there before a step begins."""
        data, task = self.source, self.cohort.task
        own = [self.state, self.tables, self.index, self.weights, self.counter, self.cohort.buffers()]
        own += [] if self.crops is None else [self.crops.keys, self.crops.black]
        given = [data.inputs, data.targets, task.data.scale, task.data.shift, quantiles(task.device)[0]]
        return [leaf for leaf in tree_leaves([own, given, *task.module.buffers()]) if isinstance(leaf, Tensor)]


def rows_of(state: S, rows: int) -> S:
    """The first rows of every tensor."""
    return cast(S, tree_map(lambda leaf: leaf[:rows] if isinstance(leaf, Tensor) else leaf, state))


def _copy(to: Any, given: Any) -> None:
    pairs = [(a, b) for a, b in zip(tree_leaves(to), tree_leaves(given), strict=True) if isinstance(a, Tensor)]
    for mine, theirs in pairs:
        mine.copy_(theirs)


def _signature(work: Work) -> Hashable:
    leaves = [*tree_leaves(work.state), *(table[:0] for table in work.tables)]
    return tuple((leaf.shape, leaf.dtype) if isinstance(leaf, Tensor) else leaf for leaf in leaves)
