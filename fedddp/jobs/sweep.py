"""Start what is not done and not at work already, here or on Slurm; wait for it if asked to."""

import sys
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from fedddp.core.progress import waiting
from fedddp.jobs import pool, states
from fedddp.jobs.background import Ready, behind
from fedddp.jobs.grid import Point
from fedddp.jobs.options import Options
from fedddp.jobs.planned import Planned, place, plan
from fedddp.jobs.profile import Profile, Size, load
from fedddp.jobs.states import State
from fedddp.jobs.table import differences
from fedddp.runs import lock
from fedddp.runs.rank import STOPPED

POLL = 3.0  # seconds between two looks at the queue
ENDED_WELL = ("done", "cancelled")


def launch(options: Options, experiment: str | None, points: Sequence[Point]) -> int:
    """The exit code: 0 if all runs ended well or go on behind this command, 1 if one failed, 130 if some were stopped.

    Without `wait` it returns as soon as the runs are queued, on Slurm or in a process of their own on this machine.
    """
    if options.cluster != "slurm" and (options.nodes or 1) > 1:
        raise ValueError(f"--nodes {options.nodes}: this machine is one node; several need --cluster slurm")
    if options.cluster == "local" and options.wait and not options.dry_run:
        pool.warm()
    out = options.out or place(experiment, points)
    with waiting(f"planning {len(points)} runs"):
        runs = plan(experiment, points, out)
    if points and len(points) > len(runs):
        print(f"{len(points)} points are {len(runs)} different runs")
    if options.cluster == "slurm":
        return _on_slurm(options, f"fedddp-{out.name}", runs, out)
    if options.dry_run:
        _open(runs, out)
        return 0
    if options.cluster == "debug":
        return _debug(_open(runs, out))
    return _here(options, runs, out) if options.wait else _behind(options, runs, out)


def _open(runs: Sequence[Planned], out: Path) -> list[Planned]:
    """What is neither done nor at work; the table says of all what they are."""
    now = states.look(run.folder for run in runs)
    settings = differences({run.folder: run.words for run in runs})
    counts = Counter(state.name for state in now.values())
    print(f"{len(runs)} runs in {out}: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    for folder, state in now.items():
        print(f"  {folder.name}  {settings[folder]}  {state.name}  {state.detail}".rstrip())
    return [run for run in runs if not now[run.folder].active and now[run.folder].name != "done"]


def _alone(out: Path) -> AbstractContextManager[None]:
    """Two sweeps at the same moment would both find a run that neither has queued yet."""
    return lock.hold(out / "jobs", patience=60.0)


def _behind(options: Options, runs: Sequence[Planned], out: Path) -> int:
    """On this machine, in a process that goes on when this one has returned."""
    log = out / "jobs" / "sweep.log"
    with waiting(f"queueing {len(runs)} runs"):
        child, queued = behind(lambda ready: _here(options, runs, out, ready), log)
    print(log.read_text(), end="")
    if not queued:
        return 1
    print(f"at work behind this command (process {child}, {log})")
    print(f"watch: fedddp status {out} --watch    wait: the same command with --wait    end: fedddp cancel {out}")
    return 0


def _here(options: Options, runs: Sequence[Planned], out: Path, ready: Ready = lambda: None) -> int:
    ranks = options.ranks or options.gpus_per_node or 1
    threads = max((run.config.federation.threads for run in runs), default=1)
    slots = min(pool.slots(ranks, threads), options.max_parallel or len(runs))
    with pool.Pool(out, ranks, slots, say=lambda line: print(line, flush=True)) as queue:
        with _alone(out):
            queue.queue(_open(runs, out))
        sys.stdout.flush()
        ready()
        with waiting(queue.told):
            ended = queue.work()
    if queue.stop:
        print("stopped; the same command goes on", file=sys.stderr)
        return STOPPED
    return _verdict(ended)


def _verdict(ended: Iterable[str]) -> int:
    """A run that was stopped has not failed: the same command goes on with it."""
    names = {*ended} - {*ENDED_WELL}
    return 0 if not names else STOPPED if names == {"stopped"} else 1


def _debug(todo: Sequence[Planned]) -> int:
    """One after another in this process, where a debugger can follow."""
    from fedddp.runs.rank import work

    return max((work(run.config, run.folder, resume=True) for run in todo), default=0)


def _on_slurm(options: Options, name: str, runs: Sequence[Planned], out: Path) -> int:
    from fedddp.jobs.slurm import Cluster

    profile: Profile = load(options.profile or ("gpu" if options.gpus_per_node else "cpu"))
    size = Size.of(profile, options.nodes, options.gpus_per_node, options.ranks)
    cluster = Cluster(name, profile, size, out, options.max_parallel)
    if options.dry_run:
        print(cluster.script(_open(runs, out)))
        return 0
    with _alone(out), waiting(f"submitting {len(runs)} runs"):
        jobs = cluster.submit(_open(runs, out))
    arrays = sorted({job.partition("_")[0] for job in jobs}, key=int)
    if jobs:
        print(f"submitted {len(jobs)} runs as job {', '.join(arrays)}; watch them: fedddp status {out} --watch")
    if not options.wait:
        return 0
    with waiting(f"waiting for {len(runs)} runs"):
        return _await(runs)


def _await(runs: Sequence[Planned]) -> int:
    """Until no run is in the queue or at work; a line for every change."""
    seen: dict[Path, State] = {}
    while True:
        now = states.look(run.folder for run in runs)
        for folder, state in now.items():
            if seen.get(folder, State("")).name != state.name:
                print(f"{folder.name}  {state.name}  {state.detail}".rstrip(), flush=True)
        seen = now
        if not any(state.active for state in now.values()):
            return _verdict(state.name for state in now.values())
        time.sleep(POLL)
