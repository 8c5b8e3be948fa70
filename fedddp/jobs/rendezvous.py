"""How the ranks of a job find each other: rank 0 opens a port that the kernel knows to be free, and writes it down.

No port is guessed, so none can collide. The address stands in a file of the run's folder, behind a word that names
this very attempt: what an earlier attempt left there is not taken for it.
"""

import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from fedddp.core.files import damaged

NAME = ".rendezvous"
LIMIT = 600.0  # seconds to wait for rank 0 where no federation.timeout is written down
SLOW_START = 600.0  # at least so many under Slurm: nodes may be slow to start Python from a shared disk


@dataclass(frozen=True)
class Place:
    """A rank's place in its job."""

    rank: int
    ranks: int
    local_rank: int
    attempt: str  # the same for all ranks of this attempt, another for every other attempt
    host: str  # how other ranks reach this machine
    patience: float = 0.0  # seconds to wait for ranks that start, if that is more than federation.timeout

    @classmethod
    def in_slurm(cls) -> "Place":
        """From what srun says to each of its tasks."""
        environ = os.environ
        names = ("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_RESTART_COUNT")
        return cls(
            rank=int(environ["SLURM_PROCID"]),
            ranks=int(environ["SLURM_STEP_NUM_TASKS"]),
            local_rank=int(environ["SLURM_LOCALID"]),
            attempt=".".join(environ.get(name, "0") for name in names),
            host=socket.gethostname(),
            patience=SLOW_START,
        )


def join(folder: Path, place: Place) -> object:
    """Describe the world in the environment, as torchrun does; rank 0 must keep what it gets until the run is over.

    A rank alone needs no rendezvous. None: the run is finished, so rank 0 does not come.
    """
    if place.ranks == 1:
        return place
    kept: object = place
    if place.rank == 0:
        from fedddp.exchange.meeting import open_store

        kept, port = open_store(place.host)
        write(folder, place, port)
        found: tuple[str, int] | None = (place.host, port)
    else:
        found = _await(folder, place)
    if found is None:
        return None
    describe(place, *found)
    return kept


def describe(place: Place, host: str, port: int) -> None:
    """The world in the environment, whose ranks meet in the store that is open there."""
    os.environ |= {
        "RANK": str(place.rank),
        "WORLD_SIZE": str(place.ranks),
        "LOCAL_RANK": str(place.local_rank),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # all ranks connect to the store
        "TORCHELASTIC_RESTART_COUNT": "0",
        "FEDDDP_PATIENCE": str(place.patience),
    }


def write(folder: Path, place: Place, port: int) -> None:
    """In place, not aside and renamed: network file systems show the new content to whoever opens the file next."""
    (folder / NAME).write_text(f"{place.attempt} {place.host} {port} .\n")


def read(folder: Path, place: Place) -> tuple[str, int] | None:
    """This attempt's address, if it is written in full."""
    try:
        words = (folder / NAME).read_text().split()
    except FileNotFoundError:
        return None
    return (words[1], int(words[2])) if len(words) == 4 and words[0] == place.attempt else None


def _await(folder: Path, place: Place) -> tuple[str, int] | None:
    limit = _timeout(folder)
    patience = max(limit, place.patience)
    until = time.monotonic() + patience
    while time.monotonic() < until:
        if (found := read(folder, place)) or not damaged(folder / "summary.json"):
            return found
        time.sleep(0.1)
    setting = " (federation.timeout)" if patience == limit else ""
    raise SystemExit(  # with this line and exit code 1: a rank that meets nobody has nothing to return to
        f"fedddp: rank 0 has not answered for {patience:g} s{setting}: rank {place.rank} waited for its address in "
        f"{folder / NAME}"
    )


def _timeout(folder: Path) -> float:
    """The run's federation.timeout, if its configuration is in the folder already."""
    from fedddp.config.loading import read as read_config

    try:
        return float(read_config(folder / "config.yaml")["federation"]["timeout"])
    except (OSError, KeyError, TypeError, ValueError):
        return LIMIT
