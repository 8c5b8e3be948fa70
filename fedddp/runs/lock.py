"""One process per run: a lock that the kernel takes back when its holder ends, however it ends.

flock(2) on a file, rather than a file that exists: after kill -9, or when the job comes back on another node, nothing
stale is left to judge. Cluster file systems (NFS, GPFS, Lustre, Ceph) keep such locks for all their nodes.
"""

import errno
import fcntl
import json
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from fedddp.core.files import naming

NAME = ".lock"
PATIENCE = 2.0  # seconds; whoever only looks (`holder`) has it for a moment too
UNSUPPORTED = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


class Busy(RuntimeError):
    """Another process has the folder; the text says which."""


@contextmanager
def hold(folder: Path, patience: float = PATIENCE) -> Iterator[None]:
    """Have the folder alone, or raise Busy."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / NAME, "a+") as file:
        until = time.monotonic() + patience
        while not _take(file, fcntl.LOCK_EX):
            if time.monotonic() > until:
                raise Busy(
                    f"{folder} is at work already: {_read(file)}. Wait for it, or end it with: fedddp cancel {folder}"
                )
            time.sleep(0.1)
        with naming(folder / NAME):
            os.ftruncate(file.fileno(), 0)
            os.write(file.fileno(), json.dumps(_me()).encode())
        yield


def holder(folder: Path) -> dict[str, str] | None:
    """Who has the folder; None if nobody does."""
    try:
        with open(folder / NAME) as file:
            return None if _take(file, fcntl.LOCK_SH) else _parse(file)
    except FileNotFoundError:
        return None


def _take(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in UNSUPPORTED:
            raise
        if kind == fcntl.LOCK_EX:
            print(f"{file.name}: this file system has no locks, nothing guards the run", file=sys.stderr)
    return True


def _me() -> dict[str, str]:
    array = os.environ.get("SLURM_ARRAY_JOB_ID")
    job = f"{array}_{os.environ['SLURM_ARRAY_TASK_ID']}" if array else os.environ.get("SLURM_JOB_ID", "")
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return {"host": socket.gethostname(), "pid": str(os.getpid()), "job": job, "since": since}


def _parse(file: IO[str]) -> dict[str, str]:
    file.seek(0)
    unknown = {"host": "?", "pid": "?", "job": "", "since": "now"}
    try:
        found = json.loads(file.read())
    except ValueError:  # taken this very moment, not written yet; or damaged
        return unknown
    return unknown | found if isinstance(found, dict) else unknown


def _read(file: IO[str]) -> str:
    return describe(_parse(file))


def describe(owner: dict[str, str]) -> str:
    job = f"Slurm job {owner['job']}, " if owner["job"] else ""
    return f"{job}process {owner['pid']} on {owner['host']} since {owner['since']}"
