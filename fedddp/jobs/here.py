"""Processes on this machine that make up a world and end together.

They are forked from this process, which has imported everything: a second time would cost each of them seconds. So
what they are to do may be any function, with whatever objects it holds. CUDA cannot be used behind a fork: beside GPUs
torchrun's agent starts them anew, and the function travels in a file.
"""

import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path

import torch

from fedddp.jobs.processes import STOPS, Processes
from fedddp.jobs.rendezvous import Place, join
from fedddp.runs.config import Config
from fedddp.runs.rank import attempt, end_with_parent

Work = Callable[[], int]


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


def start(work: Work, ranks: int, threads: int = 1, debug: bool = False) -> int:
    """Call `work` in each of `ranks` processes of this machine, as the ranks of one world; the exit code."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    if Path("/sys/class/net/lo").exists():  # ranks of one machine talk over loopback
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        begin = _torchrun if torch.cuda.is_available() else _fork
        return begin(work, ranks, Path(folder), debug)


def _fork(work: Work, ranks: int, folder: Path, debug: bool) -> int:
    import fedddp.runs.job  # noqa: F401  once, for all ranks

    context, name, parent = get_context("fork"), uuid.uuid4().hex, os.getpid()
    places = [Place(rank, ranks, rank, name, "localhost") for rank in range(ranks)]
    job = Processes([context.Process(target=_rank, args=(work, place, folder, parent, debug)) for place in places])
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # until it is clear who has to act on them
    sys.stdout.flush()  # what waits in its buffer would be printed by every process
    for process in job.processes:
        process.start()
    with job.listening():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        code = job.wait()
    return _say(job.failed, code)


def _rank(work: Work, place: Place, folder: Path, parent: int, debug: bool) -> None:
    """A forked process as one rank."""
    os.environ["TORCHELASTIC_RUN_ID"] = place.attempt
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    end_with_parent()
    if os.getppid() != parent:  # it was gone before it could take us along
        return
    kept = join(folder, place)
    code = attempt(work, debug)
    del kept
    sys.exit(code)


def _torchrun(work: Work, ranks: int, folder: Path, debug: bool) -> int:
    import cloudpickle
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    file = folder / "work"
    file.write_bytes(cloudpickle.dumps((work, debug)))
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
    )
    try:
        elastic_launch(launch, sys.executable)("-m", "fedddp.jobs.worker", str(file))
    except ChildFailedError as error:
        rank, failure = error.get_first_failure()
        return _say(rank, failure.exitcode)
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


def _say(rank: int, code: int) -> int:
    """The exit code of a run whose rank ended with this one; a rank that could not speak for itself is spoken for."""
    if code >= 0:
        return code
    print(f"fedddp: rank {rank} was ended by {signal.Signals(-code).name}; go on with --resume", file=sys.stderr)
    return 1
