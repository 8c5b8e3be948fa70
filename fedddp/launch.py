"""Ranks on this machine: torchrun's agent, started from here, with its noise turned into one line."""

import ctypes
import logging
import os
import signal
import sys
import uuid
from pathlib import Path

import torch

from fedddp.config import Config


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


def torchrun(ranks: int, words: list[str], threads: int) -> int:
    """Run `python -m fedddp words...` on `ranks` ranks of this machine; the exit code."""
    from torch.distributed.elastic.multiprocessing.api import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    if Path("/sys/class/net/lo").exists():  # ranks of one machine talk over loopback
        os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
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
        if failure.exitcode < 0:
            name = signal.Signals(-failure.exitcode).name
            print(f"fedddp: rank {rank} was ended by {name}; go on with --resume", file=sys.stderr)
        return failure.exitcode if failure.exitcode > 0 else 1
    except SignalException as error:
        return 128 + int(error.sigval)
    return 0


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
