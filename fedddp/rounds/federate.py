"""One round, top to bottom: plan, local work at home, one exchange, the server's step; on every rank alike."""

import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.clients.graphs import Graphs
from fedddp.clients.oracle import Oracle
from fedddp.core import registry, tree
from fedddp.core.task import Task
from fedddp.core.trace import told, whole
from fedddp.exchange.group import Exchange, RankLost
from fedddp.exchange.messages import Message, Totals
from fedddp.exchange.ranges import NotPublic
from fedddp.exchange.reduce import Reduction
from fedddp.exchange.spill import Spill
from fedddp.rounds import plan as planning
from fedddp.rounds.cost import Timed
from fedddp.rounds.failures import ClientFailed, Diverged, ServerFailed
from fedddp.rounds.method import Method, Phase
from fedddp.rounds.plan import Assignment, Plan
from fedddp.rounds.report import Report
from fedddp.rounds.secrecy import STATS, SUMMED, Secrecy
from fedddp.rounds.solver import Solver
from fedddp.rounds.store import ClientStore

HEAD = 8  # numbers before the exponents in what ranks agree on


@dataclass
class Federation:
    task: Task
    method: Method[Any, Any, Any]
    local: Solver
    exchange: Exchange
    plan: Plan
    store: ClientStore
    oracle: Oracle
    seed: int = 0  # of the sampling of clients
    participation: float = 1.0
    skip_bad: bool = False  # leave a failing client out instead of stopping
    clock: Callable[[], float] = time.perf_counter  # of the cohorts, by which ranks are balanced
    secrecy: Secrecy = field(default_factory=Secrecy)  # what the exchange may tell
    graphs: Graphs | None = None  # how local steps are recorded and replayed, where they are
    ends: bool = False  # whether to tell losses before and after local work
    cohort: Callable[..., Cohort] = Cohort  # how a cohort is made
    poisson: bool = False  # whether each client takes part by itself, rather than a fixed number
    silent: bool = False  # whether what clients tell of themselves stays out of the records
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
            count, share = self.task.num_clients, self.participation
            report.clients = planning.sample(self.seed, number, count, share, self.poisson)
            report.active = len(report.clients)
            report.cohorts = self.plan.cohorts(report.clients, memory=not self.store.empty)
        index = 0
        while (phase := self.method.phase(server, index)) is not None:
            total = self._exchange_phase(phase, server, report, wishes)
            with report.timed("server"):
                before, server = server, self._serve(phase, server, total, number)
                self._check_finite(server, number)
                report.metrics |= self.method.metrics(before, server, total)
            index += 1
        with report.timed("plan"):
            self._learn(report)
        if self.silent:
            report.forget()
        return server, report

    def _serve(self, phase: Phase, server: Any, total: Totals, number: int) -> Any:
        try:
            return phase.server_step(server, total, self.task)
        except Exception as error:
            raise ServerFailed(
                f"the server's step failed in round {number + 1}: {told(error)}", whole(error)
            ) from error

    def _learn(self, report: Report) -> None:
        """What the cohorts cost, for the next rounds' placement; and which ranks had to wait."""
        assert report.clients is not None
        if report.took is None:  # only sums were told
            return
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
        reduction, failure = Reduction(report.active, spill=Spill(self.waits)), None
        with report.timed("local"):
            try:
                for assigned in report.cohorts:
                    if assigned.rank == self.exchange.rank:
                        self._compute(phase, server, assigned, reduction, report)
                exponents = self.secrecy.exponents(reduction)
            except (ClientFailed, FloatingPointError, NotPublic) as error:
                failure, exponents = error, Reduction(0).exponents()
        with report.timed("exchange"):
            agreed = self._agree(reduction, failure, exponents, wishes(), report)
            report.checkpoint, report.stop = bool(agreed[4]), bool(agreed[5])
            scales = self.secrecy.scales(reduction, agreed[HEAD:])
            hide = self.secrecy.hide(self.exchange, report.cohorts)
            count = self.secrecy.contributions(report.cohorts)
            total = reduction.total(self.exchange, scales, count, self.task.device, hide)
            report.bytes += 8 * (reduction.words + len(agreed))
        if self.secrecy.hides:
            report.note_sums(total.pop(SUMMED))
        else:
            report.note(total.pop(STATS), self.task)
        plain = sum(fld.bytes for fld in reduction.fields if fld.name not in (STATS, SUMMED))
        report.bytes_up += self.method.bytes_up(plain, server, total)
        report.bytes_down += _bytes(phase.broadcast)
        return total

    def _agree(
        self,
        reduction: Reduction,
        failure: Exception | None,
        exponents: list[int],
        wishes: tuple[bool, bool],
        report: Report,
    ) -> list[int]:
        """Settle status, scales and wishes; a failure anywhere is raised everywhere, with its trace."""
        me = self.exchange.world_size - self.exchange.rank  # larger for lower ranks, never 0
        knows = bool(reduction.fields)
        head = [
            0 if failure is None else me,
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
            said = json.dumps([str(failure), whole(failure)]) if failure is not None else ""
            raise ClientFailed(*json.loads(self.exchange.tell(said, self.exchange.world_size - agreed[0]))) from failure
        if not agreed[2]:
            raise ClientFailed(self._nobody(report))
        if agreed[1]:  # a rank without clients learns the message's shape from one that has some
            owner = self.exchange.world_size - agreed[2]
            description = self.exchange.tell(reduction.describe(), owner)
            if not knows:
                reduction.learn(description)
        return agreed

    def _nobody(self, report: Report) -> str:
        """That no client is left, and why the first of them is not; every rank calls this and says the same."""
        world, none = self.exchange.world_size, 2**62
        mine = min(report.left_out, default=None)
        first = -self.exchange.agree([-none if mine is None else -(mine * world + self.exchange.rank)])[0]
        cause = self.exchange.tell("" if mine is None else report.left_out[mine], first % world)
        return (
            f"every client of round {report.round + 1} was left out: nothing to aggregate. "
            f"The first, client {first // world}: {cause}"
        )

    def _compute(self, phase: Phase, server: Any, assigned: Assignment, reduction: Reduction, report: Report) -> None:
        """One cohort: read, step, check, write, add to the reduction."""
        start = self.clock()
        ids, outcome = self._attempt(phase, server, assigned.ids, report)
        if outcome is None:
            return
        memory, message, cohort = outcome
        norms = _row_norms(message)
        good = self._good(message, norms, ids, report)
        if good is not None and not bool(good.any()):  # as if the cohort had not been there
            return
        assert report.clients is not None
        keys = torch.tensor(ids)
        self.store.write(keys, memory, good)
        seconds = torch.full_like(norms, self.clock() - start)
        loss, steps, ends = cohort.seen()
        told = [torch.ones_like(norms), loss / steps, norms, seconds, *(ends if ends is not None else ())]
        stats = torch.stack(told, dim=1)
        examples = self.task.num_examples[keys].to(stats)
        self.secrecy.add(reduction, message, stats, examples, torch.searchsorted(report.clients, keys), good)

    def _attempt(
        self, phase: Phase, server: Any, ids: tuple[int, ...], report: Report
    ) -> tuple[tuple[int, ...], tuple[Any, Message, Cohort] | None]:
        """The cohort's step; if it raises, find whose fault it is and, if asked to, go on without."""
        try:
            return ids, self._step(phase, server, ids, report.round)
        except (RankLost, KeyboardInterrupt):
            raise
        except Exception as error:
            if len(ids) == 1:
                self._blame(ids[0], report, told(error), error)
                return (), None
            fine = tuple(i for i in ids if self._attempt(phase, server, (i,), report)[1] is not None)
            if len(fine) == len(ids):  # only together do they fail: not a client's fault
                raise
            return fine, self._step(phase, server, fine, report.round) if fine else None

    def _step(self, phase: Phase, server: Any, ids: tuple[int, ...], number: int) -> tuple[Any, Message, Cohort]:
        cohort = self.cohort(ids, number, self.task, self.oracle, graphs=self.graphs, ends=self.ends)
        memory = self.store.read(torch.tensor(ids))
        with torch.no_grad():
            memory, message = phase.client_step(server, memory, cohort, self.local)
        return memory, message, cohort

    def _good(self, message: Message, norms: Tensor, ids: tuple[int, ...], report: Report) -> Tensor | None:
        """Which rows are finite; None when all are, which is the rule."""
        if isfinite(float(norms.amax())):
            return None
        good = torch.ones(len(ids), dtype=torch.bool, device=norms.device)
        for entry in message.values():
            if entry.value.is_floating_point():
                good &= entry.value.reshape(len(ids), -1).isfinite().all(1)
        for row in (~good).nonzero().flatten().tolist():
            bad = [n for n, e in message.items() if not bool(e.value[row].isfinite().all())]
            self._blame(ids[row], report, f"its {' and '.join(bad)} is not finite (a smaller local.lr may help)")
        return good

    def _blame(self, client: int, report: Report, cause: str, error: Exception | None = None) -> None:
        """Stop because of this client, or note that it is left out."""
        if not self.skip_bad:
            raise ClientFailed(f"client {client} failed in round {report.round + 1}: {cause}") from error
        report.left_out[client] = cause

    def _check_finite(self, server: Any, number: int) -> None:
        leaves = {name: leaf for name, leaf in tree.leaves(server).items() if leaf.is_floating_point() and leaf.numel()}
        ends = torch.stack([end for leaf in leaves.values() for end in leaf.aminmax()]).tolist() if leaves else []
        for name, low, high in zip(leaves, ends[::2], ends[1::2], strict=True):
            if not (isfinite(low) and isfinite(high)):
                raise Diverged(f"round {number + 1}: the server's {name} is not finite (a smaller step may help)")
        if improper := self.method.improper(server):
            raise Diverged(f"round {number + 1}: {registry.name_of(self.method)}: {improper}")

    def own_models(self, server: Any) -> Tensor | None:
        """[n, P] of the clients at home here, where the method is judged by them."""
        return self.method.own_models(server, self.store.memory)

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


def _bytes(sent: tuple[Any, ...]) -> int:
    """Of the tensors, or NamedTuples of them, that each client is sent."""
    return sum(leaf.numel() * leaf.itemsize for part in sent for leaf in tree.leaves(part).values())


def _row_norms(message: Message) -> Tensor:
    """[C] norm over all float fields of each client's message; not finite if an entry is not."""
    values = [e.value.reshape(len(e.value), -1) for e in message.values() if e.value.is_floating_point()]
    return torch.stack([torch.linalg.vector_norm(v, dim=1).double() for v in values]).norm(dim=0)
