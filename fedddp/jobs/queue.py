"""What Slurm's own commands say of jobs; light to import, for the commands that only look."""

import re
import subprocess
from collections.abc import Iterable, Sequence


def max_array_size() -> int | None:
    """How many elements an array may have; None where there is no Slurm to ask."""
    found = re.search(r"MaxArraySize\s*=\s*(\d+)", _ask("scontrol", "show", "config"))
    return int(found[1]) if found else None


def states(jobs: Iterable[str]) -> dict[str, str]:
    """Slurm's word for the state of each job it knows, and why it waits: squeue for the living, sacct for the rest."""
    wanted = set(jobs)
    found = _rows(wanted, "squeue", "--noheader", "--array", "--format", "%i|%T|%r")
    ended = _rows(
        wanted - found.keys(), "sacct", "--noheader", "--parsable2", "--allocations", "--format", "JobID,State"
    )
    return ended | found


def _rows(jobs: set[str], *command: str) -> dict[str, str]:
    """job -> the rest of its line."""
    if not jobs:
        return {}
    ids = ",".join(sorted({job.partition("_")[0] for job in jobs}))
    lines = (line.split("|", 1) for line in _ask(*command, "--jobs", ids).splitlines() if "|" in line)
    return {job: rest for job, rest in lines if job in jobs}


def cancel(jobs: Sequence[str]) -> None:
    if jobs:
        _ask("scancel", "--quiet", *jobs)


def _ask(*command: str) -> str:
    """A Slurm command's answer; nothing where it is not installed or does not know."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""
