"""Slurm through submitit: runs become job arrays whose elements are whole multi-rank jobs.

submitit writes the script, submits it and starts our task in every rank. What stops, requeues and counts retries is
our own (slurm_task.py): submitit's handler would exit in the middle of a round, on rank 0 only, and takes every job of
less than ten minutes for timed out.
"""

import re
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import submitit

from fedddp.jobs import queue
from fedddp.jobs.planned import Planned
from fedddp.jobs.profile import Profile, Size
from fedddp.jobs.slurm_task import SlurmTask
from fedddp.jobs.ticket import Ticket

# Until our task listens, a warning must wait, not kill the interpreter; an `env` too old for that can only ignore it.
HOLD = 'trap "" USR2; env --block-signal=USR2 true 2>&- && set -- env --block-signal=USR2 "$@"; exec "$@"'
OPTION = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
PYTHON = shlex.join(["sh", "-c", HOLD, "sh", sys.executable])


def _refuse(values: Mapping[str, Any]) -> None:
    """What would end a line of the script and begin one of its own; submitit quotes the rest."""
    for key, value in values.items():
        if not OPTION.fullmatch(key):
            raise ValueError(f"profile.options: {key!r} is no option of sbatch; options are words such as constraint")
        for text in map(str, value if isinstance(value, list) else [value]):
            if not text.isprintable():
                raise ValueError(f"{key}={text!r}: must be one line of printable characters to stand in a Slurm script")


class Executor(submitit.SlurmExecutor):
    """submitit's, which can also write its script on a machine without Slurm."""

    @classmethod
    def affinity(cls) -> int:
        return 2

    def script(self, runs: int) -> str:
        """What sbatch will get for an array of so many runs."""
        self.parameters |= {"map_count": runs} if runs > 1 else {}
        text: str = self._make_submission_file_text(self._submitit_command_str, "dry-run")
        return text


@dataclass(frozen=True)
class Cluster:
    """Where and how the jobs of a sweep run."""

    name: str
    profile: Profile
    size: Size
    out: Path
    parallel: int | None = None  # most jobs at the same time

    @property
    def folder(self) -> Path:
        """Scripts and logs."""
        return self.out.absolute() / "jobs"

    def executor(self, after: str = "") -> Executor:
        executor = Executor(self.folder, python=PYTHON)
        executor.update_parameters(**self.parameters(after))
        return executor

    def parameters(self, after: str = "") -> dict[str, Any]:
        """In submitit's words. `after`: the job whose end is to be awaited."""
        profile, size = self.profile, self.size
        given = {
            "job_name": self.name,
            "partition": profile.partition,
            "account": profile.account,
            "qos": profile.qos,
            "time": profile.time,
            "mem": f"{profile.memory:g}G" if profile.memory else None,
            "nodes": size.nodes,
            "ntasks_per_node": size.ranks_per_node,
            "cpus_per_task": profile.cpus_per_rank,
            "gpus_per_node": size.gpus_per_node or None,
            "signal_delay_s": profile.signal_delay,
            "dependency": f"afterany:{after}" if after else None,
            "array_parallelism": self.parallel or sys.maxsize,
            "setup": [*profile.setup, *profile.exports()] or None,
        }
        _refuse(given | profile.options | {"out": self.out})
        return {key: value for key, value in given.items() if value is not None} | {
            "stderr_to_stdout": True,
            "wckey": None,
            # srun would wait for ever for the peers of a failed rank, and forgets --cpus-per-task
            "srun_args": ["--kill-on-bad-exit=1", f"--cpus-per-task={profile.cpus_per_rank}"],
            "additional_parameters": {"ntasks": size.ranks, "requeue": True, **profile.options},
        }

    def arrays(self, runs: Sequence[Planned]) -> list[Sequence[Planned]]:
        """Cut to what the cluster takes as one array."""
        most = queue.max_array_size() or len(runs) or 1
        return [runs[start : start + most] for start in range(0, len(runs), most)]

    def script(self, runs: Sequence[Planned]) -> str:
        return "\n".join(self.executor().script(len(array)) for array in self.arrays(runs))

    def submit(self, runs: Sequence[Planned]) -> list[str]:
        """The jobs' ids; each run's ticket names its own."""
        if shutil.which("sbatch") is None:
            raise ValueError("--cluster slurm: there is no sbatch on this machine; log in to the cluster, or --dry-run")
        submitted: list[str] = []
        for array in self.arrays(runs):
            after = submitted[-1].partition("_")[0] if submitted and self.parallel else ""
            submitted += self._submit(array, after)
        return submitted

    def _submit(self, array: Sequence[Planned], after: str) -> list[str]:
        executor = self.executor(after)
        for run in array:
            run.prepare()
        with executor.batch():
            jobs = [executor.submit(self.task(run)) for run in array]
        for run, job in zip(array, jobs, strict=True):
            log = f"{self.folder}/{job.job_id}_{{rank}}_log.out"
            words, rounds = list(run.words), run.config.federation.rounds
            Ticket("slurm", job.job_id, words, rounds, self.size.ranks, log).write(run.folder)
        return [str(job.job_id) for job in jobs]

    def task(self, run: Planned) -> SlurmTask:
        folder = str(run.folder.absolute())
        return SlurmTask(folder, (f"{folder}/config.yaml",), self.profile.retries, self.profile.signal_delay)
