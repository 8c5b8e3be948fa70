"""Processes on this machine that make up a world and end together.

They are forked from this process, which has imported everything: a second time would cost each of them seconds. So
what they are to do may be any function, with whatever objects it holds. CUDA cannot be used behind a fork: beside GPUs
torchrun's agent starts them anew, and the function travels in a file.
"""

import logging
import os
import shutil
import signal
import socket
import sys
import tempfile
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import torch

from fedddp.config.loading import Config
from fedddp.exchange.group import in_world
from fedddp.jobs.processes import STOPS, Processes
from fedddp.jobs.rendezvous import Place, describe
from fedddp.runs.rank import attempt, end_with_parent
from fedddp.runs.rank import work as run_rank

Work = Callable[[], int]
HOST = "localhost"
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


def default_ranks(config: Config) -> int:
    """One rank per GPU, or as many as there are cores and clients to keep them busy."""
    if torch.cuda.is_available():
        return torch.cuda.device_count()
    if config.method.pools:
        return 1
    clients = max(1, round((config.split.count() or 10**9) * config.federation.participation))
    width = config.federation.cohort_width
    cohorts = -(-clients // width) if isinstance(width, int) and width > 0 else clients
    cores = max(1, len(os.sched_getaffinity(0)) // config.federation.threads)
    return min(cores, cohorts)


def go_on(config: Config, out: Path, ranks: int | None, debug: bool = False) -> int:
    """Go on with the run in `out` on so many ranks of this machine; the exit code."""
    if ranks is not None and ranks < 1:
        raise ValueError(f"--ranks {ranks}: must be at least 1")
    rank = partial(run_rank, config, out, True)
    count = ranks or default_ranks(config)
    return rank() if count == 1 else start(rank, count, config.federation.threads, debug)


def start(work: Work, ranks: int, threads: int = 1, debug: bool = False) -> int:
    """Call `work` in each of `ranks` processes of this machine, as the ranks of one world; the exit code."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    if Path("/sys/class/net/lo").exists():  # ranks of one machine talk over loopback
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    begin = _torchrun if torch.cuda.is_available() or in_world() else _fork  # neither lives on behind a fork
    return begin(work, ranks, debug)


def _fork(work: Work, ranks: int, debug: bool) -> int:
    """They meet in a store of this process: it answers whatever happens to a rank, and leaves no file behind."""
    import fedddp.runs.job  # noqa: F401  once, for all ranks
    from fedddp.exchange.meeting import keep_store
    from fedddp.exchange.watch import listen

    context, name, parent = get_context("fork"), uuid.uuid4().hex, os.getpid()
    listener = listen(HOST)
    places = [Place(rank, ranks, rank, name, HOST) for rank in range(ranks)]
    job = Processes([context.Process(target=_rank, args=(work, place, listener, parent, debug)) for place in places])
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # until it is clear who has to act on them
    sys.stdout.flush()  # what waits in its buffer would be printed by every process
    for process in job.processes:
        process.start()
    kept = keep_store(HOST, listener)  # now, since its thread would not live on behind a fork
    with job.listening():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        code = job.wait()
    del kept
    return _say(job.failed, code)


def _rank(work: Work, place: Place, listener: socket.socket, parent: int, debug: bool) -> None:
    """A forked process as one rank."""
    if place.ranks > 1:
        describe(place, HOST, listener.getsockname()[1])
    listener.close()
    os.environ |= {"TORCHELASTIC_RUN_ID": place.attempt, "FEDDDP_STORE": "the launcher"}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    end_with_parent()
    if os.getppid() != parent:  # it was gone before it could take us along
        return
    sys.exit(attempt(work, debug))


def _torchrun(work: Work, ranks: int, debug: bool) -> int:
    with tempfile.TemporaryDirectory() as folder:
        return _torchrun_in(Path(folder), partial(_tidy, work, Path(folder), os.getpid()), ranks, debug)


def _tidy(work: Work, folder: Path, launcher: int) -> int:
    """A launcher that was killed cannot remove its folder: its ranks do."""
    try:
        return work()
    finally:
        if os.getppid() != launcher:
            shutil.rmtree(folder, ignore_errors=True)


def _torchrun_in(folder: Path, work: Work, ranks: int, debug: bool) -> int:
    import cloudpickle
    from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    file = folder / "work"
    for name, module in list(sys.modules.items()):
        if name.startswith("fedddp_plugin_"):  # read from a file by us: the ranks could not import it by this name
            cloudpickle.register_pickle_by_value(module)
    file.write_bytes(cloudpickle.dumps(sys.path) + cloudpickle.dumps((work, debug)))
    launch = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=ranks,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        local_addr="localhost",
        max_restarts=0,
        monitor_interval=0.1,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs")),
    )
    try:
        with _handlers_kept():
            elastic_launch(launch, sys.executable)("-m", "fedddp.jobs.worker", str(file))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return _say(rank, failure.exitcode)
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


@contextmanager
def _handlers_kept() -> Iterator[None]:
    """torchrun's agent answers signals in a way of its own, and leaves it so."""
    ours = threading.current_thread() is threading.main_thread()  # the only one that may
    kept = {number: signal.getsignal(number) for number in SIGNALS} if ours else {}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _say(rank: int, code: int) -> int:
    """The exit code of a run whose rank ended with this one; a rank that could not speak for itself is spoken for."""
    if code >= 0:
        return code
    print(f"fedddp: rank {rank} was ended by {signal.Signals(-code).name}; go on with --resume", file=sys.stderr)
    return 1
