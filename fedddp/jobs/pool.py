"""A sweep on this machine: as many jobs at a time as its cores or GPUs take, each with its own ranks.

Processes are forked from a process that has imported everything already, so a small run does not spend its time on
imports. They end when the sweep ends, even by kill -9: after their round and with a checkpoint.
"""

import os
import shutil
import signal
import sys
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from multiprocessing import connection, forkserver, get_context
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import FrameType

from fedddp.jobs import slurm_task, states, ticket
from fedddp.jobs.planned import Planned
from fedddp.jobs.processes import Processes
from fedddp.jobs.rendezvous import Place, join
from fedddp.jobs.ticket import Ticket
from fedddp.runs import lock
from fedddp.runs.rank import STOPPED, end_with_parent

PRELOAD = ["fedddp.runs.job", "fedddp.runs.rank", "fedddp.records.pictures", "torch.utils.tensorboard"]


@dataclass
class Started:
    """One run at work."""

    run: Planned
    slot: int
    ranks: Processes

    def outcome(self) -> str:
        codes = {process.exitcode for process in self.ranks.processes}
        if codes == {0}:
            return "done"
        return "stopped" if codes <= {0, STOPPED, -signal.SIGTERM} else "failed"


@dataclass
class Pool:
    """Runs what is queued, `slots` jobs at a time; `say` gets a line for each that ended.

    While it is entered, it holds a folder of its own locked: so others see whether its queue still moves.
    """

    out: Path
    ranks: int  # of a job
    slots: int
    say: Callable[[str], None]
    stop: bool = False
    waiting: deque[Planned] = field(default_factory=deque)
    jobs: list[Started] = field(default_factory=list)
    ended: Counter[str] = field(default_factory=Counter)
    held: ExitStack = field(default_factory=ExitStack)

    @property
    def home(self) -> Path:
        return self.out.absolute() / "jobs" / f"local-{os.getpid()}"

    def __enter__(self) -> "Pool":
        self.held.callback(shutil.rmtree, self.home, ignore_errors=True)
        self.held.enter_context(lock.hold(self.home))
        for number in (signal.SIGINT, signal.SIGTERM):
            self.held.callback(signal.signal, number, signal.signal(number, self._ask))
        return self

    def __exit__(self, *_: object) -> None:
        self.held.close()

    def told(self) -> str:
        """How far it is, in a few words."""
        return f"{self.ended.total()} runs ended, {len(self.jobs)} at work, {len(self.waiting)} queued"

    def queue(self, runs: Sequence[Planned]) -> None:
        for run in runs:
            run.prepare()
            self._ticket(run).write(run.folder)
        self.waiting.extend(runs)

    def work(self) -> Counter[str]:
        """How many runs ended how."""
        context, total = warm(), len(self.waiting)
        while (self.waiting and not self.stop) or self.jobs:
            while self.waiting and not self.stop and len(self.jobs) < self.slots:
                self._start(self.waiting.popleft(), context)
            connection.wait([p.sentinel for job in self.jobs for p in job.ranks.processes], timeout=0.5)
            for job in [job for job in self.jobs if job.ranks.over()]:
                self.jobs.remove(job)
                self._end(job, total)
        return self.ended

    def _ask(self, number: int, _: FrameType | None) -> None:
        """Stop after the current rounds; at once if asked again."""
        for job in self.jobs:
            job.ranks.signal(signal.SIGKILL if self.stop else signal.SIGTERM)
        self.stop = True

    def _ticket(self, run: Planned) -> Ticket:
        log = f"{run.folder.absolute()}/rank-{{rank}}.log"
        return Ticket("local", str(self.home), list(run.words), run.config.federation.rounds, self.ranks, log)

    def _start(self, run: Planned, context: ForkServerContext) -> None:
        mine = self._ticket(run)
        if _cancelled(run):
            self.ended["cancelled"] += 1
            return
        mine.note(run.folder, "running")
        slot = min(set(range(self.slots)) - {job.slot for job in self.jobs})
        attempt = uuid.uuid4().hex
        processes: list[BaseProcess] = []
        for number in range(self.ranks):
            place = Place(number, self.ranks, number, attempt, "localhost")
            log, devices = mine.log.format(rank=number), _devices(slot, self.ranks)
            work = (mine.job, str(run.folder.absolute()), place, log, devices)
            processes.append(context.Process(target=_rank, args=work))
            with _nameless_main():
                processes[-1].start()
        self.jobs.append(Started(run, slot, Processes(processes)))

    def _end(self, job: Started, total: int) -> None:
        outcome, mine = job.outcome(), self._ticket(job.run)
        if outcome == "stopped" and _cancelled(job.run):
            outcome = "cancelled"
        mine.note(job.run.folder, outcome)
        self.ended[outcome] += 1
        reached = states.progress(job.run.folder)
        why = states.last_error(mine) if outcome == "failed" else reached.metric
        self.say(f"{self.ended.total()}/{total}  {job.run.folder.name}  {outcome}  {why}")


@contextmanager
def _nameless_main() -> Iterator[None]:
    """A started process would first run the script that this process was started with; ours need nothing of it."""
    main = sys.modules["__main__"]
    names = ("__file__", "__spec__")
    kept: dict[str, object] = {name: main.__dict__.pop(name) for name in names if name in main.__dict__}
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(kept)


def _cancelled(run: Planned) -> bool:
    found = ticket.read(run.folder)
    return found is not None and found.outcome == "cancelled"


def _rank(home: str, folder: str, place: Place, log: str, devices: str) -> None:
    """A forked process as one rank of a run."""
    os.environ["TORCHELASTIC_RUN_ID"] = place.attempt
    end_with_parent()
    if lock.holder(Path(home)) is None:  # the sweep was gone before it could take us along
        return
    if devices:
        os.environ["CUDA_VISIBLE_DEVICES"] = devices
    with open(log, "w") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    kept = join(Path(folder), place)
    sys.exit(slurm_task.run(Path(folder), [f"{folder}/config.yaml"]) if kept else 0)


def warm() -> ForkServerContext:
    """Start the process that imports what every rank needs; it does so while we plan."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # parallelism is ranks, not threads
    if Path("/sys/class/net/lo").exists():  # ranks of one machine talk over loopback
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    context = get_context("forkserver")
    context.set_forkserver_preload(PRELOAD)
    forkserver.ensure_running()
    return context


def slots(ranks: int, threads: int) -> int:
    """How many jobs of so many ranks the machine's GPUs take, or its cores."""
    places = len(_gpus()) or len(os.sched_getaffinity(0)) // threads
    return max(1, places // ranks)


def _gpus() -> list[str]:
    """The names by which CUDA knows the GPUs that we may use."""
    import torch

    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    count = torch.cuda.device_count()
    return visible.split(",")[:count] if visible else [str(number) for number in range(count)]


def _devices(slot: int, ranks: int) -> str:
    return ",".join(_gpus()[slot * ranks : (slot + 1) * ranks])
