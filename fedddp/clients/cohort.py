"""A cohort: the clients a rank computes together, on tensors with a leading client axis."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedddp.clients.augment import Crops
from fedddp.clients.dropout import Masks
from fedddp.clients.feed import feed, located, send
from fedddp.clients.graphs import Graphs, Now, Work, rows_of
from fedddp.clients.noise import Normal
from fedddp.clients.oracle import NO_MASKS, Oracle
from fedddp.clients.order import batches, by_class, by_length, shuffled
from fedddp.clients.schedule import Chunk, Schedule
from fedddp.clients.tally import Tally
from fedddp.core.data import MASK
from fedddp.core.rng import key
from fedddp.core.shards import Shards
from fedddp.core.task import Task

CPU = torch.device("cpu")


class Batch(NamedTuple):
    """One step's examples of the clients still at work, a prefix of the cohort's rows."""

    inputs: Tensor  # [c, B, ...]
    targets: Tensor  # [c, B, ...]
    weights: Tensor | None = None  # [c, B], 0 for the padding of a short batch; None where no batch is short
    counts: Sequence[int] | None = None  # [c] real examples of a short batch, as the host knows them


Turn = Callable[[Tensor, Tensor, Batch], Tensor]


@dataclass
class Cohort:
    ids: tuple[int, ...]  # larger clients first
    round: int
    task: Task
    oracle: Oracle
    turn: Turn | None = None  # what becomes of a gradient before a solver sees it
    draw: Callable[[Tensor], Tensor] | None = None  # where a gradient is taken, other than at the solver's theta
    tally: Tally | None = None
    parts: list[tuple[Tensor, "Cohort"]] = field(default_factory=list)  # cohorts of some of the rows
    graphs: Graphs | None = None  # how steps are recorded and replayed, where they are
    ends: bool = False  # whether the losses of the first and the last batch are wanted
    state: Tensor | None = None  # [C, S] buffers of each client's model, where they are federated; steps move them
    within: Shards | None = None  # the part of every client's examples that is looked at; none: all of them

    chunks: dict[tuple[int, int], Chunk] = field(default_factory=dict, repr=False)  # of all examples, once asked for

    def steered(self, turn: Turn) -> "Cohort":
        """The same clients, for a solver that sees turn(theta, gradient, batch) [c, P] in place of each gradient."""
        return replace(self, turn=turn, tally=self.counted)

    def drawn(self, draw: Callable[[Tensor], Tensor]) -> "Cohort":
        """The same clients, for a solver whose gradients are taken at draw(theta) [c, P]: noise around theta.

        Nothing is recorded: a draw from the clients' own generators is no work of the device.
        """
        return replace(self, draw=draw, tally=self.counted, graphs=None)

    def whole(self, theta: Tensor) -> tuple["Cohort", Tensor]:
        """Who sees all of the model, and its parameters there: more than theta where layers are clients' own."""
        return self, theta

    def shared(self, found: Tensor, axes: int = 1) -> Tensor:
        """Of numbers for each of the whole model's parameters, along the last `axes`, those for theta's."""
        return found

    def part(self, rows: Tensor, member: int = 0) -> "Cohort":
        """Some of the rows as a cohort of its own, whose losses count here.

        Each `member` above 0 has streams of its own: an ensemble's second training sees another order and noise.
        """
        if self.state is not None:
            raise ValueError(
                "model.buffers: a method with several members for each client, and federation.fits, need a model "
                "without federated buffers; choose model.buffers=freeze"
            )
        ids = tuple(self.ids[row] for row in rows.tolist())
        made = Cohort(ids, self.round, self._apart(member), self.oracle, graphs=self.graphs, ends=self.ends)
        self.parts.append((rows, made))
        return made

    def share(self, number: int, within: Shards) -> "Cohort":
        """The same clients, who look at a part of their examples only, as share `number`; its losses count here.

        A client's f_k stays as large as with all of its examples, of whose mean loss the part's is an estimate.
        """
        if self.state is not None:
            raise ValueError("federation.parts: needs a model without federated buffers; choose model.buffers=freeze")
        made = replace(self, task=self._apart(number), within=within, tally=None, parts=[], chunks={}, graphs=None)
        self.parts.append((torch.arange(len(self.ids)), made))
        return made

    def _apart(self, member: int) -> Task:
        """The task with streams of its own for each member above 0."""
        if not member:
            return self.task
        seed = key(self.task.streams.seed, "member", member)
        return replace(self.task, streams=replace(self.task.streams, seed=seed))

    @property
    def counted(self) -> Tally:
        """What was seen of its own rows so far."""
        if self.tally is None:
            zeros = torch.zeros(len(self.ids), dtype=self.task.dtype, device=self.task.device)
            ends = zeros.new_full((2, len(self.ids)), torch.nan) if self.ends else None
            self.tally = Tally(zeros, torch.zeros(len(self.ids), dtype=self.task.dtype), ends)
        return self.tally

    def seen(self) -> Tally:
        """Losses and steps of every row, those of its parts too, on the device."""
        own = self.counted
        loss, steps = own.loss.clone(), own.steps.to(self.task.device, copy=True)
        found = Tally(loss, steps, None if own.ends is None else own.ends.clone())
        for rows, part in self.parts:
            theirs = part.seen()
            where = rows.to(loss.device)
            loss[where] += theirs.loss
            steps[where] += theirs.steps
            if found.ends is not None and theirs.ends is not None:
                begun, done = found.ends[:, where]
                first = torch.where(begun.isnan(), theirs.ends[0], begun)
                found.ends[:, where] = torch.stack([first, torch.where(theirs.ends[1].isnan(), done, theirs.ends[1])])
        return found

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def shards(self) -> Shards:
        """Which examples are looked at."""
        return self.task.shards if self.within is None else self.within

    @cached_property
    def sizes(self) -> Tensor:
        """[C] examples of each client that are looked at, as integers."""
        return self.shards.num_examples[list(self.ids)]

    @property
    def num_examples(self) -> Tensor:
        """[C] examples of each client, as a weight; all of them, also where a part is looked at."""
        sizes = self.sizes if self.within is None else self.task.num_examples[list(self.ids)]
        return sizes.to(self.task.device, self.task.dtype)

    def grad(self, theta: Tensor, batch: Batch, out: Tensor | None = None) -> Tensor:
        """Gradient [c, P] of each client's mean loss over its batch."""
        point = theta if self.draw is None else self.draw(theta)
        grad, loss = self.oracle(point, *batch, out=out, masks=self._dropped(batch), buffers=self._rows(len(theta)))
        self.counted.note(loss)
        return grad if self.turn is None else self.turn(theta, grad, batch)

    def _dropped(self, batch: Batch) -> Mapping[str, Tensor]:
        """The masks of dropout for the next gradient."""
        oracle = self.oracle
        return oracle.dropout.masks(batch.inputs, self._masks, self.task.dtype) if oracle.dropout else NO_MASKS

    def _rows(self, count: int) -> Tensor | None:
        """The buffers of the first clients."""
        if self.state is None and self.task.state is not None:
            raise ValueError(
                "model.buffers: local work outside of a round (evaluation.personal, say) has no buffers to begin with; "
                "choose model.buffers=freeze"
            )
        return None if self.state is None else self.state[:count]

    def lower(self, theta: Tensor, batch: Batch, lr: float) -> bool:
        """theta [c, P] <- theta - lr·gradient in place, where the model's products can do it as they are computed.

        False, and nothing done, where they cannot, or where somebody wants to see the gradient.
        """
        if self.turn is not None or self.draw is not None or not self.oracle.lowers(batch.inputs):
            return False
        self.counted.note(self.oracle.lower(theta, *batch, lr, self._dropped(batch)))
        return True

    def loss(self, theta: Tensor, batch: Batch) -> Tensor:
        """[c] each client's mean loss over its batch at theta [c, P], without a gradient and without dropout."""
        total = self._sum_loss(theta, batch)
        count = batch.targets.shape[1] if batch.weights is None else batch.weights.sum(1)
        return total / count

    def full_loss(self, theta: Tensor) -> Tensor:
        """[C] each client's *sum* loss f_k at theta [C, P]."""
        total = theta.new_zeros(len(theta))
        for batch in self.everything():
            total[: len(batch.inputs)] += self._sum_loss(theta[: len(batch.inputs)], batch)
        return total

    def _sum_loss(self, theta: Tensor, batch: Batch) -> Tensor:
        rows = []
        points = theta if self.state is None else torch.cat([theta, self.state[: len(theta)]], 1)
        for row, point in enumerate(points):
            outputs = self.task.evaluate(point, batch.inputs[row])
            losses = self.task.objective.loss(outputs, batch.targets[row])
            rows.append(losses.sum() if batch.weights is None else (losses * batch.weights[row]).sum())
        return torch.stack(rows) if rows else theta.new_zeros(0)

    def steps(self, epochs: int, batch_size: int) -> Tensor:
        """[C] batches in `epochs` passes; the short last one counts."""
        return epochs * -(-self.sizes // batch_size)

    def most_steps(self, table: Tensor) -> int:
        """Steps that the largest client of all would take, of whom these with table [steps, C, B] may be some."""
        most, own, width = int(self.shards.num_examples.max()), int(self.sizes.max()), table.shape[2]
        return len(table) // -(-own // width) * -(-most // width)

    def descend(
        self, work: Work, epochs: int, batch_size: int, watch: Callable[[int, Any], None] | None = None
    ) -> None:
        """Every step of the epochs, on the rows at work of work.state, in place; `watch` sees them after each."""
        schedule = self._schedule(epochs, batch_size)
        if self.graphs is not None and work.same is not None:
            self.graphs.run(self, work, schedule, watch)
            return
        here, last = work.state, -1
        for number, batch in enumerate(self._batches(schedule)):
            rows = len(batch.inputs)
            if rows != last:  # slicing all of it costs as much as a kernel
                here, last = rows_of(work.state, rows), rows
            work.body(self, here, batch, Now(number, tuple(table[number, :rows] for table in work.tables)))
            if watch is not None:
                watch(number, here)

    def batches(self, epochs: int, batch_size: int) -> Iterator[Batch]:
        """Each client's own shuffled epochs, stacked.

        Rows are sorted by size, so at any step the clients still at work are a prefix: no row is computed
        in vain. Only a short last batch is padded, with weight 0. A batch's inputs last until the next is asked for.
        """
        return self._batches(self._schedule(epochs, batch_size))

    def _schedule(self, epochs: int, batch_size: int) -> Schedule:
        own = torch.cat([self.shards.of_client(client) for client in self.ids])
        places, real = self._places(epochs, batch_size)
        steps = self.steps(epochs, batch_size)
        working = (steps.unsqueeze(0) > torch.arange(len(places)).unsqueeze(1)).sum(1).tolist()
        source, rows = located(self.task, own)
        table = rows.index_select(0, send(places, rows.device).flatten()).view_as(places)
        return Schedule(source, table, working, real.tolist(), self._weights(real, table.shape[2]))

    def _batches(self, schedule: Schedule) -> Iterator[Batch]:
        take = feed(self.task, schedule)
        crops = self.crops()
        for step, rows in enumerate(schedule.working):
            inputs, targets = take(step, rows)
            inputs = inputs if crops is None else crops(inputs, step)
            short = schedule.short(step)
            weights, own = (schedule.weights[step, :rows], schedule.counts[step][:rows]) if short else (None, None)
            yield Batch(inputs, targets, weights, own)

    def crops(self) -> Crops | None:
        """What cuts the clients' pictures anew in every step, where that is wanted."""
        return Crops(self.task, self.send(torch.tensor(self.keys("augment")))) if self.task.data.augment else None

    def _weights(self, real: Tensor, width: int) -> Tensor:
        """[steps, C, B] 1 for real examples, 0 for padding; nothing where there is none."""
        if bool((real == width).all()):
            return torch.empty(0)
        real = self.send(real).unsqueeze(2)
        return (torch.arange(width, device=real.device) < real).to(self.task.dtype)

    def _places(self, epochs: int, batch_size: int) -> tuple[Tensor, Tensor]:
        """Places [steps, C, B] among the cohort's examples, and how many are real [steps, C], on the host."""
        named = MASK in self.task.data.named  # texts are sorted by length, which the host does
        device = CPU if named or self.task.data.streamed else self.task.device
        order = shuffled(self.keys("order"), self.sizes, epochs, device)
        if self.task.streams.kind == "common":
            order = by_class(order, self.task, self.shards, self.ids)
        if named:
            by_length(order, self.task, self.shards, self.ids, min(batch_size, order.shape[2]))
        return batches(order, self.sizes, batch_size)

    def everything(self, batch_size: int = 1024) -> Iterator[Batch]:
        """All examples of every client once, in their stored order, in chunks."""
        if self.within is not None:
            raise ValueError(
                "federation.parts: needs a method and a solver that look at examples by gradients of batches alone: "
                "fedavg, pvi, ... with sgd, adam or ivon"
            )
        for start in range(0, int(self.sizes.max()), batch_size):
            place = batch_size, start
            chunk = self.chunks.get(place) or self._chunk(start, batch_size)
            if not self.task.data.streamed:  # so that the next time nothing is copied to a device
                self.chunks[place] = chunk
            inputs, targets = self.task.data.gather(chunk.rows, self.task.dtype, source=chunk.source)
            yield Batch(inputs, targets, chunk.weights, chunk.counts)

    def _chunk(self, start: int, batch_size: int) -> Chunk:
        sizes = self.sizes
        rows = int((sizes > start).sum())
        position = start + torch.arange(min(batch_size, int(sizes.max()) - start))
        real = (sizes[:rows] - start).clamp_max(len(position))
        offset = self.shards.offsets[list(self.ids[:rows])].unsqueeze(1)
        index = self.shards.order[offset + torch.minimum(position, sizes[:rows].unsqueeze(1) - 1)]
        source, index = self.task.data.near(index, self.task.device)
        weights = self._weights(real.unsqueeze(0), len(position))
        short = bool(weights.numel())
        return Chunk(source, self.send(index), weights[0] if short else None, real.tolist() if short else None)

    def full_grad(self, theta: Tensor) -> Tensor:
        """Gradient [C, P] of each client's *sum* loss f_k at theta [C, P]."""
        total = torch.zeros_like(theta)
        for batch in self.everything():
            rows = len(batch.inputs)
            grad, _ = self.oracle(theta[:rows], *batch, buffers=self._rows(rows), learn=self.state is None)
            count = batch.targets.shape[1] if batch.weights is None else batch.weights.sum(1, keepdim=True)
            total[:rows] += grad * count
        return total

    def keys(self, purpose: str) -> list[int]:
        """Each client's own key in this round."""
        return self.task.streams.keys(purpose, self.round, self.ids)

    def noise(self, purpose: str = "noise") -> Normal:
        return Normal([torch.Generator().manual_seed(key) for key in self.keys(purpose)])

    def held(self) -> "Cohort":
        """With buffers of its own for all that a step changes, so that a recording may change them."""
        if self.oracle.dropout:
            self._masks.hold()
        return self

    def take(self, other: "Cohort") -> None:
        """The numbers of another cohort, of which it is a double, as a fit of that one begins."""
        self.counted.clear()
        if self.oracle.dropout:
            self._masks.take(other._masks)

    def drew(self, grads: int) -> None:
        """So many gradients more were made, by its double."""
        if self.oracle.dropout:
            self._masks.drawn += grads

    def buffers(self) -> list[Tensor]:
        """What a step reads of a double."""
        seen = [self.counted.loss] if self.counted.ends is None else [self.counted.loss, self.counted.ends]
        return [*seen, *(self._masks.buffers() if self.oracle.dropout else [])]

    def send(self, table: Tensor) -> Tensor:
        return send(table, self.task.device)

    @cached_property
    def _masks(self) -> Masks:
        """Where the dropout of its rows is: each client and layer has a stream of its own."""
        names = self.oracle.dropout.layers
        return Masks({name: self.send(torch.tensor(self.keys(f"dropout {name}"))) for name in names})
