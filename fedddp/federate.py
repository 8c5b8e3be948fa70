"""One round, top to bottom: plan, local work at home, one exchange, the server's step; on every rank alike."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import torch
from torch import Tensor

from fedddp import plan as planning
from fedddp import tree
from fedddp.aside import Aside
from fedddp.cohort import Cohort
from fedddp.cost import Timed
from fedddp.exchange import Exchange, RankLost
from fedddp.methods import Phase, phase_of
from fedddp.oracle import Oracle
from fedddp.plan import Assignment, Plan
from fedddp.reduce import Gather, Ledger, Message, Totals
from fedddp.store import ClientStore
from fedddp.task import Task

HEAD = 8  # numbers before the exponents in what ranks agree on
STATS = "engine/stats"  # gathered from every client: took part, loss, norm of its message, seconds of its cohort
PARTS = ("plan", "local", "exchange", "server")


class ClientFailed(RuntimeError):
    """A client raised or sent something that is not finite; the text names it."""


class Diverged(RuntimeError):
    """The server's state is not finite, or not the same on all ranks."""


@dataclass
class Report:
    """What a round leaves for the records."""

    round: int
    active: int = 0
    skipped: int = 0
    bytes: int = 0  # int64 words reduced, per rank
    bytes_up: int = 0  # what each client sends, in the method's own number format
    bytes_down: int = 0  # what each client is sent
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PARTS, 0.0))
    idle: list[float] = field(default_factory=list)  # seconds that each rank's local work was shorter than the longest
    cohorts: list[Assignment] = field(default_factory=list)  # who was computed where
    clients: Tensor | None = None  # [active] ids
    took: Tensor | None = None  # [active] seconds of the client's cohort; 0 for a client left out
    losses: Tensor | None = None  # [active] mean training loss, NaN for a client left out
    norms: Tensor | None = None  # [active] norm of what the client sent
    train_loss: float = float("nan")
    metrics: dict[str, float] = field(default_factory=dict)  # the method's own
    checkpoint: bool = False  # some rank wishes for a checkpoint after this round
    stop: bool = False  # some rank was asked to stop

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.seconds[part] += time.perf_counter() - start


@dataclass
class Federation:
    task: Task
    method: Any
    local: Any
    exchange: Exchange
    plan: Plan
    store: ClientStore
    oracle: Oracle
    seed: int = 0  # of the sampling of clients
    participation: float = 1.0
    skip_bad: bool = False  # leave a failing client out instead of stopping
    clock: Callable[[], float] = time.perf_counter  # of the cohorts, by which ranks are balanced
    waits: str = "device"  # where sums over cohorts wait for the exchange: device, host or file

    def round(
        self, server: Any, number: int, wishes: Callable[[], tuple[bool, bool]] = lambda: (False, False)
    ) -> tuple[Any, Report]:
        """Every rank calls this; every rank returns the same server state.

        `wishes` says whether this rank wants a checkpoint and whether it was asked to stop; what any rank
        wishes, all learn in the exchange that takes place anyway.
        """
        report = Report(number)
        with report.timed("plan"):
            report.clients = planning.sample(self.seed, number, self.task.num_clients, self.participation)
            report.active = len(report.clients)
            report.cohorts = self.plan.cohorts(report.clients, memory=not self.store.empty)
        index = 0
        while (phase := phase_of(self.method, server, index)) is not None:
            total = self._exchange_phase(phase, server, report, wishes)
            with report.timed("server"):
                before, server = server, phase.server_step(server, total, self.task)
                self._check_finite(server, number)
                if hasattr(self.method, "metrics"):
                    report.metrics |= self.method.metrics(before, server, total)
            index += 1
        with report.timed("plan"):
            self._learn(report)
        return server, report

    def _learn(self, report: Report) -> None:
        """What the cohorts cost, for the next rounds' placement; and which ranks had to wait."""
        assert report.clients is not None
        assert report.took is not None
        took = dict(zip(report.clients.tolist(), report.took.tolist(), strict=True))
        timed = [Timed(c.work, c.rank, max(took[client] for client in c.ids)) for c in report.cohorts]
        self.plan.cost.learn(timed, self.plan.ranks)
        busy = [0.0] * self.plan.ranks
        for _, rank, seconds in timed:
            busy[rank] += seconds
        report.idle = [max(busy) - seconds for seconds in busy]

    def _exchange_phase(
        self,
        phase: Phase,
        server: Any,
        report: Report,
        wishes: Callable[[], tuple[bool, bool]],
    ) -> Totals:
        ledger, failure = Ledger(report.active, aside=Aside(self.waits)), ""
        with report.timed("local"):
            try:
                for assigned in report.cohorts:
                    if assigned.rank == self.exchange.rank:
                        self._compute(phase, server, assigned, ledger, report)
                exponents = ledger.exponents()
            except (ClientFailed, FloatingPointError) as error:
                failure, exponents = str(error), Ledger(0).exponents()
        with report.timed("exchange"):
            agreed = self._agree(ledger, failure, exponents, wishes())
            report.checkpoint, report.stop = bool(agreed[4]), bool(agreed[5])
            scales = agreed[HEAD:]
            total = ledger.total(self.exchange, scales, len(report.cohorts), self.task.device)
            report.bytes += 8 * (ledger.words + len(agreed))
        report.bytes_up += sum(fld.bytes for fld in ledger.fields if fld.name != STATS)
        report.bytes_down += _broadcast_bytes(server, phase.broadcast)
        _note(total.pop(STATS), report, self.task)
        return total

    def _agree(self, ledger: Ledger, failure: str, exponents: list[int], wishes: tuple[bool, bool]) -> list[int]:
        """Settle status, scales and wishes; a failure anywhere is raised everywhere."""
        me = self.exchange.world_size - self.exchange.rank  # larger for lower ranks, never 0
        knows = bool(ledger.fields)
        head = [
            me if failure else 0,
            0 if knows else 1,
            me if knows else 0,
            0,
            int(wishes[0]),
            int(wishes[1]),
            0,
            0,
        ]
        agreed = self.exchange.agree([*head, *exponents])
        if agreed[0]:
            raise ClientFailed(self.exchange.tell(failure, self.exchange.world_size - agreed[0]))
        if not agreed[2]:
            raise ClientFailed("every client of the round was left out: nothing to aggregate")
        if agreed[1]:  # a rank without clients learns the message's shape from one that has some
            owner = self.exchange.world_size - agreed[2]
            description = self.exchange.tell(ledger.describe(), owner)
            if not knows:
                ledger.learn(description)
        return agreed

    def _compute(self, phase: Phase, server: Any, assigned: Assignment, ledger: Ledger, report: Report) -> None:
        """One cohort: read, step, check, write, add to the ledger."""
        start = self.clock()
        ids, outcome = self._attempt(phase, server, assigned.ids, report.round)
        if outcome is None:
            return
        memory, message, cohort = outcome
        norms = _row_norms(message)
        good = self._good(message, norms, ids, report.round)
        assert report.clients is not None
        keys = torch.tensor(ids)
        self.store.write(keys, memory, good)
        seconds = torch.full_like(norms, self.clock() - start)
        stats = torch.stack([torch.ones_like(norms), cohort.tally.loss / cohort.tally.steps, norms, seconds], dim=1)
        ledger.add({**message, STATS: Gather(stats)}, torch.searchsorted(report.clients, keys), good)

    def _attempt(
        self, phase: Phase, server: Any, ids: tuple[int, ...], number: int
    ) -> tuple[tuple[int, ...], tuple[Any, Message, Cohort] | None]:
        """The cohort's step; if it raises, find whose fault it is and, if asked to, go on without."""
        try:
            return ids, self._step(phase, server, ids, number)
        except (RankLost, KeyboardInterrupt):
            raise
        except Exception as error:
            if len(ids) == 1:
                self._blame(ids[0], number, f"{type(error).__name__}: {error}", error)
                return (), None
            fine = tuple(i for i in ids if self._attempt(phase, server, (i,), number)[1] is not None)
            if len(fine) == len(ids):  # only together do they fail: not a client's fault
                raise
            return fine, self._step(phase, server, fine, number) if fine else None

    def _step(self, phase: Phase, server: Any, ids: tuple[int, ...], number: int) -> tuple[Any, Message, Cohort]:
        cohort = Cohort(ids, number, self.task, self.oracle)
        memory = self.store.read(torch.tensor(ids))
        with torch.no_grad():
            memory, message = phase.client_step(server, memory, cohort, self.local)
        return memory, message, cohort

    def _good(self, message: Message, norms: Tensor, ids: tuple[int, ...], number: int) -> Tensor | None:
        """Which rows are finite; None when all are, which is the rule."""
        if bool(norms.isfinite().all()):
            return None
        good = torch.ones(len(ids), dtype=torch.bool, device=norms.device)
        for entry in message.values():
            if entry.value.is_floating_point():
                good &= entry.value.reshape(len(ids), -1).isfinite().all(1)
        for row in (~good).nonzero().flatten().tolist():
            bad = [n for n, e in message.items() if not bool(e.value[row].isfinite().all())]
            self._blame(ids[row], number, f"its {' and '.join(bad)} is not finite (a smaller local.lr may help)")
        return good

    def _blame(self, client: int, number: int, cause: str, error: Exception | None = None) -> None:
        if not self.skip_bad:
            raise ClientFailed(f"client {client} failed in round {number}: {cause}") from error

    def _check_finite(self, server: Any, number: int) -> None:
        for name, leaf in tree.leaves(server).items():
            if leaf.is_floating_point() and not bool(leaf.isfinite().all()):
                raise Diverged(f"round {number}: the server's {name} is not finite (a smaller step may help)")
        improper = self.method.improper(server) if hasattr(self.method, "improper") else ""
        if improper:
            raise Diverged(f"round {number}: {type(self.method).__module__.rpartition('.')[2]}: {improper}")

    def check_equal(self, server: Any, number: int) -> None:
        """All ranks hold the same server state, or the run stops."""
        digest = int(checksum(server), 16) >> 2
        high, low = self.exchange.agree([digest, -digest])
        if high != -low:
            raise Diverged(
                f"round {number}: ranks hold different server states; a method's server_step or a custom "
                "module uses something that is not the same everywhere (time, rank, global random state)"
            )


def checksum(state: Any) -> str:
    """A hash of the bytes of every tensor of a state."""
    digest = blake2b(digest_size=8)
    for name, leaf in tree.leaves(state).items():
        digest.update(f"{name}{leaf.dtype}{tuple(leaf.shape)}".encode())
        digest.update(leaf.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _broadcast_bytes(server: Any, names: tuple[str, ...]) -> int:
    """What a client is sent when it is sent these fields of the server's memory."""
    fields = [leaf for name in names for leaf in tree.leaves(getattr(server, name)).values()]
    return sum(leaf.numel() * leaf.itemsize for leaf in fields)


def _row_norms(message: Message) -> Tensor:
    """[C] norm over all float fields of each client's message; not finite if an entry is not."""
    values = [e.value.reshape(len(e.value), -1) for e in message.values() if e.value.is_floating_point()]
    return torch.stack([torch.linalg.vector_norm(v, dim=1).double() for v in values]).norm(dim=0)


def _note(stats: Tensor, report: Report, task: Task) -> None:
    """Fill the report from what clients said of themselves; slots of clients left out are zero."""
    present = stats[:, 0] > 0
    report.skipped = int((~present).sum())
    losses = torch.where(present, stats[:, 1], torch.nan).cpu()
    report.norms = torch.where(present, stats[:, 2], torch.nan).cpu()
    seconds = stats[:, 3].cpu()
    report.took = seconds if report.took is None else report.took + seconds
    if bool(losses.isfinite().any()):  # the phase that trained, if a round has several
        assert report.clients is not None
        weight = task.num_examples[report.clients].double()
        weight = torch.where(losses.isfinite(), weight, 0)
        report.losses = losses
        report.train_loss = float((losses.nan_to_num() * weight).sum() / weight.sum())
