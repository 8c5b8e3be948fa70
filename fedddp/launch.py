"""Ranks on this machine, as processes of their own that end together.

They are forked from this process, which has imported everything: a second time would cost each of them seconds. CUDA
cannot be used behind a fork, so beside GPUs torchrun's agent starts them anew.
"""

import ctypes
import logging
import os
import signal
import sys
import tempfile
import uuid
from multiprocessing import get_context
from pathlib import Path

import torch

from fedddp.config import Config
from fedddp.jobs.meeting import Place, meet
from fedddp.jobs.ranks import STOPS, Ranks


def default_ranks(config: Config) -> int:
    """One rank per GPU, or as many as there are cores and clients to keep them busy."""
    if torch.cuda.is_available():
        return torch.cuda.device_count()
    if getattr(config.method, "pools", False):
        return 1
    clients = max(1, round(getattr(config.split, "clients", 10**9) * config.federation.participation))
    width = config.federation.cohort_width
    cohorts = -(-clients // width) if isinstance(width, int) and width > 0 else clients
    cores = max(1, len(os.sched_getaffinity(0)) // config.federation.threads)
    return min(cores, cohorts)


def is_rank() -> bool:
    """Whether this process is one of several, or was started as the only one."""
    return "RANK" in os.environ or "TORCHELASTIC_RUN_ID" in os.environ


def start(ranks: int, words: list[str], threads: int) -> int:
    """`fedddp words...` on `ranks` ranks of this machine; the exit code."""
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    if Path("/sys/class/net/lo").exists():  # ranks of one machine talk over loopback
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if torch.cuda.is_available():
        return _torchrun(ranks, words)
    with tempfile.TemporaryDirectory() as folder:
        return _fork(ranks, words, Path(folder))


def _fork(ranks: int, words: list[str], folder: Path) -> int:
    import fedddp.job  # noqa: F401  once, for all ranks

    context, attempt, parent = get_context("fork"), uuid.uuid4().hex, os.getpid()
    places = [Place(rank, ranks, rank, attempt, "localhost") for rank in range(ranks)]
    job = Ranks([context.Process(target=_rank, args=(words, place, folder, parent)) for place in places])
    signal.pthread_sigmask(signal.SIG_BLOCK, STOPS)  # until it is clear who has to act on them
    for process in job.processes:
        process.start()
    with job.listening():
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
        code = job.wait()
    return _say(job.failed, code)


def _rank(words: list[str], place: Place, folder: Path, parent: int) -> None:
    """A forked process as one rank."""
    from fedddp.cli import main

    os.environ["TORCHELASTIC_RUN_ID"] = place.attempt
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPS)
    end_with_parent()
    if os.getppid() != parent:  # it was gone before it could take us along
        return
    kept = meet(folder, place)
    main(words)
    del kept


def _torchrun(ranks: int, words: list[str]) -> int:
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
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
        elastic_launch(launch, sys.executable)("-m", "fedddp", *words)
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


def keep_memory() -> None:
    """Let malloc use large blocks again instead of returning them to the kernel, whose fresh pages are slow (glibc).

    A freed block serves later tensors, so the peak stays what it was. Writing to 40 MB of new pages takes 28 ms, to
    used ones 3 ms.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        mmap_threshold, trim_threshold = -3, -1
        libc.mallopt(mmap_threshold, 2**30)
        libc.mallopt(trim_threshold, 2**31 - 1)


def end_with_parent() -> None:
    """Ask the kernel for SIGTERM when the launcher dies, so that no rank is left behind (Linux)."""
    if "TORCHELASTIC_RUN_ID" in os.environ and sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, int(signal.SIGTERM))
