"""Runs on a real Slurm: arrays, nodes, preemption, time limits, failures; and always the uninterrupted result.

All scenarios run side by side, as they do on a cluster: each is a function that submits, disturbs and waits, started
with the first test that asks for one; a test looks at what its scenario found.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fedddp.cli import main
from fedddp.jobs import states, ticket
from fedddp.jobs.states import State
from tests import forked
from tests.jobs.command import SMALL, await_, checksums, fedddp, finished, rounds, runs

pytestmark = pytest.mark.slurm
ROUNDS = 40
CASE = ["digits", *SMALL, f"federation.rounds={ROUNDS}", "checkpoint.every=2"]
PLAIN = Path(__file__).parents[2] / "slurm" / "plain.sbatch"
SLOWLY = 0.4  # seconds of a forward pass: time to disturb a run


def call(*words: object) -> str:
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=True).stdout


@dataclass
class Scene:
    """A folder of its own, a profile of its own, and a pace that can be set while its jobs run."""

    folder: Path

    @property
    def out(self) -> Path:
        return self.folder / "runs"

    def options(self, **settings: Any) -> list[str]:
        """Where and how to submit; nodes 3 to 6 are for those who ask for them."""
        base = {"partition": "main", "time": 30, "memory": 1, "gloo_interface": "lo", "signal_delay": 30, "retries": 5}
        where = {"exclude": "node[3-6]"} | settings.pop("options", {})
        profile = base | settings | {"setup": [f"export SLOW={self.folder}/pace"]}
        profile["options"] = {key: value for key, value in where.items() if value}
        path = self.folder / "profile.yaml"
        path.write_text(json.dumps(profile))
        return ["--cluster", "slurm", "--profile", str(path), "--out", str(self.out)]

    def pace(self, seconds: float) -> None:
        (self.folder / "pace").write_text(str(seconds))

    def submit(self, *words: object, **settings: Any) -> str:
        """The job's id; in this process, which has imported everything already."""
        with pytest.raises(SystemExit) as end:
            main(["submit", *CASE, *map(str, words), *self.options(**settings)])
        assert not end.value.code
        return self.ticket().job

    @property
    def run(self) -> Path:
        (found,) = runs(self.out)
        return found

    def ticket(self) -> ticket.Ticket:
        found = ticket.read(self.run)
        assert found is not None
        return found

    def state(self) -> State:
        return states.look([self.run])[self.run]

    def log(self) -> str:
        return "".join(path.read_text() for path in self.ticket().logs()[:1])

    def at_work(self, number: int = 3) -> None:
        await_(f"{self.folder.name}: {number} rounds", lambda: rounds(self.out) >= number)

    def awaits(self, text: str) -> None:
        await_(f"{self.folder.name}: {text}", lambda: text in self.log())

    def done(self) -> dict[str, str]:
        await_(f"{self.folder.name}: its end", lambda: finished(self.out) == runs(self.out))
        return checksums(self.out)


def at_rest(job: str) -> bool:
    return not call("squeue", "--noheader", "--jobs", job)


def nodes(job: str) -> list[str]:
    names = call("squeue", "--noheader", "--jobs", job, "--format", "%N").strip()
    return call("scontrol", "show", "hostnames", names).split()


def array(scene: Scene) -> dict[str, Any]:
    """As a user types it."""
    done = fedddp("sweep", *CASE, "seed=0..2", "--max-parallel", 2, "--wait", *scene.options())
    assert done.returncode == 0, done.stdout + done.stderr
    jobs = [found.job for run in runs(scene.out) if (found := ticket.read(run))]
    return {"checksums": checksums(scene.out), "jobs": jobs, "status": forked.fedddp("status", scene.out).stdout}


def two_nodes(scene: Scene) -> dict[str, Any]:
    scene.submit("--nodes", 2, "--ranks", 4, "--gpus-per-node", 2)
    sums = scene.done()
    summary = json.loads((scene.run / "summary.json").read_text())
    allocated = call("sacct", "-nXP", "-j", scene.ticket().job, "-o", "NNodes,AllocTRES")
    return {"checksums": sums, "ranks": summary["world_size"], "allocated": allocated}


def preemption(scene: Scene) -> dict[str, Any]:
    scene.pace(SLOWLY)
    scene.submit("--ranks", 2, options={"exclude": "", "nodelist": "node3"})
    scene.at_work()
    call("sbatch", "-p", "high", "-w", "node3", "--exclusive", "-o", "/dev/null", "--wrap", "sleep 1")
    scene.awaits("requeued")
    scene.pace(0)
    return {"checksums": scene.done(), "log": scene.log()}


def time_limit(scene: Scene) -> dict[str, Any]:
    scene.pace(SLOWLY)
    scene.submit(time=1, signal_delay=45)
    scene.awaits("requeued")
    scene.pace(0)
    return {"checksums": scene.done(), "log": scene.log()}


def long_round(scene: Scene) -> dict[str, Any]:
    """A round that is longer than the warning before Slurm's SIGKILL."""
    scene.pace(SLOWLY)
    job = scene.submit(signal_delay=16)
    scene.at_work()
    scene.pace(60)
    call("scancel", "--signal", "USR2", job)
    scene.awaits("back to the last checkpoint")
    scene.pace(0)
    return {"checksums": scene.done(), "log": scene.log()}


def requeue(scene: Scene) -> dict[str, Any]:
    scene.pace(SLOWLY)
    job = scene.submit()
    scene.at_work()
    call("scontrol", "requeue", job)
    scene.pace(0)
    await_("its place in the queue", lambda: scene.state().name == "requeued")
    scene.submit()  # skips what is queued
    return {"checksums": scene.done(), "log": scene.log(), "jobs": [job, scene.ticket().job]}


def lost_node(scene: Scene, slurm: Path) -> dict[str, Any]:
    """The slurmd of rank 0's node is killed; the rank itself lives on until it misses the other one."""
    scene.pace(SLOWLY)
    job = scene.submit("--nodes", 2, "--ranks", 2, options={"exclude": "node[1-3]"})
    scene.at_work()
    before = nodes(job)
    os.kill(slurmd(slurm, before[0]), signal.SIGKILL)
    await_("Slurm to miss the node", lambda: scene.state().name == "requeued")
    scene.pace(0)
    await_("the second attempt", lambda: scene.state().name == "running")
    return {"before": before, "after": nodes(job), "checksums": scene.done(), "log": scene.log()}


def slurmd(folder: Path, node: str) -> int:
    """The process id of a node's slurmd: unshare's child is the node's first process, slurmd that one's."""
    pid = int((folder / "pids" / node).read_text().split()[0])
    (first,) = children(pid)
    (found,) = [p for p in children(first) if "slurmd" in Path(f"/proc/{p}/cmdline").read_text()]
    return found


def children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def cancelled(scene: Scene) -> dict[str, Any]:
    """Cancelled at work, then submitted again on another number of ranks."""
    scene.pace(SLOWLY)
    job = scene.submit("--ranks", 2)
    scene.at_work()
    said = forked.fedddp("cancel", scene.out).stdout
    await_("the job's end", lambda: at_rest(job))
    state, reached = scene.state(), rounds(scene.out)
    scene.pace(0)
    scene.submit("--ranks", 1)
    return {"said": said, "state": state, "reached": reached, "checksums": scene.done(), "log": scene.log()}


def failing(scene: Scene) -> dict[str, Any]:
    done = forked.fedddp("sweep", *CASE, "local.lr=1e30", "--ranks", 2, "--wait", *scene.options())
    return {"code": done.returncode, "said": done.stdout, "status": forked.fedddp("status", scene.out).stdout}


def out_of_retries(scene: Scene) -> dict[str, Any]:
    scene.pace(SLOWLY)
    job = scene.submit(retries=0)
    scene.at_work()
    call("scancel", "--signal", "USR2", job)
    await_("the job's end", lambda: at_rest(job))
    return {"state": scene.state()}


def plain(scene: Scene) -> dict[str, Any]:
    """The script for those without submitit, preempted where Slurm sends nothing but SIGTERM."""
    scene.pace(SLOWLY)
    scene.out.mkdir(parents=True)
    log = scene.folder / "log"
    options = ["--output", log, "--exclude", "node[3-6]", "--mem", "1G", "--ntasks-per-node", 1]
    environment = f"ALL,GLOO_SOCKET_IFNAME=lo,FEDDDP_PYTHON={sys.executable},SLOW={scene.folder / 'pace'}"
    job = call("sbatch", "--parsable", "--export", environment, *options, PLAIN, scene.out / "plain", *CASE).strip()
    scene.at_work()
    call("scancel", "--signal", "TERM", job)
    await_("the requeue", lambda: "requeued" in log.read_text())
    scene.pace(0)
    return {"checksums": scene.done(), "log": log.read_text()}


SCENES = (time_limit, preemption, long_round, requeue, plain, cancelled, out_of_retries, failing, two_nodes, array)
Found = Callable[[str], Any]


@pytest.fixture(scope="module")
def found(slurm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    """What a scenario found, by its name; all are started at once, those that take long first."""

    def scene(name: str) -> Scene:
        return Scene(tmp_path_factory.mktemp(name))

    with ThreadPoolExecutor(len(SCENES) + 1) as threads:
        futures = {"lost_node": threads.submit(lost_node, scene("lost_node"), slurm)}
        for play in SCENES:
            futures[play.__name__] = threads.submit(play, scene(play.__name__))
        yield lambda name: futures[name].result()


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The same runs without Slurm and without disturbance."""
    out = tmp_path_factory.mktemp("local")
    done = forked.fedddp("sweep", *CASE, "seed=0..2", "--wait", "--out", out)
    assert done.returncode == 0, done.stdout + done.stderr
    return checksums(out)


def same(sums: dict[str, str], local: dict[str, str], count: int = 1) -> bool:
    """Finished, with the bits of the undisturbed local run; the folder's name is the configuration's."""
    return len(sums) == count and all(local[name] == value for name, value in sums.items())


def test_an_array_of_two_runs_and_one_that_does_not_fit(found, local):
    seen = found("array")
    assert same(seen["checksums"], local, 3)
    assert sorted("_" in job for job in seen["jobs"]) == [False, True, True]
    assert seen["status"].count(" done ") == 3
    assert seen["status"].count(f"{ROUNDS}/{ROUNDS}") == 3
    assert "3 done" in seen["status"]


def test_two_nodes_with_two_ranks_each(found, local):
    seen = found("two_nodes")
    assert same(seen["checksums"], local)
    assert seen["ranks"] == 4
    assert seen["allocated"].startswith("2|")
    assert "gres/gpu=4" in seen["allocated"]


def test_a_preempted_job_comes_back(found, local):
    seen = found("preemption")
    assert same(seen["checksums"], local)
    assert "stopped after round" in seen["log"]
    assert "goes on after round" in seen["log"]


def test_a_job_at_its_time_limit_comes_back(found, local):
    seen = found("time_limit")
    assert same(seen["checksums"], local)
    assert "goes on after round" in seen["log"]


def test_a_round_longer_than_the_warning_is_given_up(found, local):
    seen = found("long_round")
    assert same(seen["checksums"], local)
    assert "stopped after round" not in seen["log"]
    assert "goes on after round" in seen["log"]


def test_a_requeued_job_goes_on_and_is_not_submitted_twice(found, local):
    seen = found("requeue")
    assert same(seen["checksums"], local)
    assert "goes on after round" in seen["log"]
    assert seen["jobs"][0] == seen["jobs"][1]


def test_a_lost_node_is_replaced(found, local):
    seen = found("lost_node")
    assert same(seen["checksums"], local)
    assert seen["before"][0] not in seen["after"]
    assert "goes on after round" in seen["log"]


def test_a_cancelled_run_stays_cancelled_until_submitted_again(found, local):
    seen = found("cancelled")
    assert "cancelled 1 of 1" in seen["said"]
    assert seen["state"].name == "cancelled"
    assert 3 <= seen["reached"] < ROUNDS
    assert same(seen["checksums"], local)
    assert "goes on after round" in seen["log"]


def test_a_failing_run_names_its_cause(found):
    seen = found("failing")
    assert seen["code"] == 1
    for text in (seen["said"], seen["status"]):
        assert "failed: client " in text
        assert "is not finite" in text
    assert "1 failed" in seen["status"]


def test_retries_are_limited(found):
    state = found("out_of_retries")["state"]
    assert state.name == "failed"
    assert "retries=0" in state.detail


def test_the_plain_script(found, local):
    seen = found("plain")
    assert len(seen["checksums"]) == 1
    assert seen["checksums"]["plain"] in local.values()
    assert "goes on after round" in seen["log"]


def test_an_array_larger_than_the_cluster_takes_is_cut(slurm, tmp_path):
    scene = Scene(tmp_path)
    words = ["sweep", *CASE, "seed=0..4", "--max-parallel", 1, "--dry-run"]
    text = forked.fedddp(*words, *scene.options()).stdout
    assert text.count("--array=0-1%1") == 2
    assert text.count("#!/bin/bash") == 3  # and one run by itself
