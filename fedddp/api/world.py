"""Where a script finds itself: one of srun's tasks, a rank of torchrun, or a process alone."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fedddp.jobs import rendezvous


def srun() -> rendezvous.Place | None:
    """This process's place among the tasks of srun, if it is one of several."""
    several = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1
    return rendezvous.Place.in_slurm() if several and "RANK" not in os.environ else None


@contextmanager
def world(folder: Path) -> Iterator[None]:
    """Tasks of srun meet in the folder; ranks of torchrun have met; any other process is alone."""
    place = srun()
    if place is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    kept = rendezvous.join(folder, place)
    yield
    del kept
