"""Start what is not done and not at work already, here or on Slurm; wait for it if asked to."""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from fedddp.jobs import local, lock, states
from fedddp.jobs.grid import Point
from fedddp.jobs.profile import Profile, Size, load
from fedddp.jobs.runs import Run, plan
from fedddp.jobs.states import State

POLL = 3.0  # seconds between two looks at the queue
ENDED_WELL = ("done", "cancelled")


def launch(arguments: argparse.Namespace, experiment: str | None, points: Sequence[Point]) -> int:
    if arguments.cluster == "local" and not arguments.dry_run:
        local.warm()
    name = Path(experiment or "digits").stem
    out = arguments.out or Path("runs") / name
    runs = plan(experiment, points, out)
    before = states.look(run.folder for run in runs)
    todo = [run for run in runs if not before[run.folder].active and before[run.folder].name != "done"]
    _announce(runs, before, out, len(points))
    if arguments.cluster == "slurm":
        return _on_slurm(arguments, f"fedddp-{name}", runs, todo, out)
    if arguments.nodes and arguments.nodes > 1:
        raise ValueError(f"--nodes {arguments.nodes}: this machine is one node; several need --cluster slurm")
    if arguments.dry_run:
        return 0
    return _debug(todo) if arguments.cluster == "debug" else _here(arguments, todo, out)


def _announce(runs: Sequence[Run], before: dict[Path, State], out: Path, points: int) -> None:
    counts = Counter(before[run.folder].name for run in runs)
    same = f" ({points} points, some of them the same run)" if points > len(runs) else ""
    print(f"{len(runs)} runs in {out}{same}: " + ", ".join(f"{count} {name}" for name, count in counts.items()))
    for run in runs:
        state = before[run.folder]
        print(f"  {run.folder.name}  {' '.join(run.words)}  {state.name} {state.detail}".rstrip())


def _here(arguments: argparse.Namespace, todo: Sequence[Run], out: Path) -> int:
    ranks = arguments.ranks or arguments.gpus_per_node or 1
    threads = max((run.config.federation.threads for run in todo), default=1)
    slots = min(local.slots(ranks, threads), arguments.max_parallel or len(todo) or 1)
    pool = local.Pool(out, ranks, slots, say=lambda line: print(line, flush=True))
    ended = pool.work(todo)
    if pool.stop:
        print("stopped; the same command goes on", file=sys.stderr)
        return 130
    return int(any(ended[name] for name in ended if name not in ENDED_WELL))


def _debug(todo: Sequence[Run]) -> int:
    """One after another in this process, where a debugger can follow."""
    from fedddp.commands.run import work

    return max((work(run.config, run.folder, resume=True) for run in todo), default=0)


def _on_slurm(arguments: argparse.Namespace, name: str, runs: Sequence[Run], todo: Sequence[Run], out: Path) -> int:
    from fedddp.jobs.slurm import Cluster

    profile: Profile = load(arguments.profile or ("gpu" if arguments.gpus_per_node else "cpu"))
    size = Size.of(profile, arguments.nodes, arguments.gpus_per_node, arguments.ranks)
    cluster = Cluster(name, profile, size, out, arguments.max_parallel)
    if arguments.dry_run:
        print(cluster.script(todo))
        return 0
    with lock.hold(out / "jobs"):  # two sweeps at the same moment would both find a run not yet submitted
        jobs = cluster.submit(todo)
    arrays = sorted({job.partition("_")[0] for job in jobs}, key=int)
    if jobs:
        print(f"submitted {len(jobs)} runs as job {', '.join(arrays)}; watch them: fedddp status {out} --watch")
    return _await(runs) if arguments.wait else 0


def _await(runs: Sequence[Run]) -> int:
    """Until no run is in the queue or at work; a line for every change."""
    seen: dict[Path, State] = {}
    while True:
        now = states.look(run.folder for run in runs)
        for folder, state in now.items():
            if seen.get(folder, State("")).name != state.name:
                print(f"{folder.name}  {state.name}  {state.detail}".rstrip(), flush=True)
        seen = now
        if not any(state.active for state in now.values()):
            return int(any(state.name not in ENDED_WELL for state in now.values()))
        time.sleep(POLL)
