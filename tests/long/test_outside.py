"""From a wheel in a fresh environment, outside the tree: a new method in one file goes all the way."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest

METHOD = '''
"""Federated averaging with a momentum that each client keeps for itself."""

from typing import Any, NamedTuple

import torch
from torch import Tensor

import fedddp
from fedddp import Cohort, Mean, Message, PointSolver, Server, Task, Totals


class Clients(NamedTuple):
    push: Tensor  # [C, P]
    solver: Any


class Pushed(fedddp.Method[Server, Clients]):
    """Averaging of changes, of which each client remembers a part."""

    part: float = 0.5

    def init_clients(self, count: int, task: Task, local: PointSolver) -> Clients:
        return Clients(task.initial.new_zeros(count, len(task.initial)), local.memory(task, count))

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        fit = local.minimise(cohort, server.theta, clients.solver)
        push = self.part * clients.push + fit.theta - server.theta
        return Clients(push, fit.memory), {"push": Mean(push, weight=cohort.num_examples)}

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        return Server(server.theta + total["push"])
'''
CASE = ["method=pushed.py:Pushed", "federation.rounds=30", "federation.participation=0.5", "checkpoint.every=2"]


@pytest.fixture(scope="module")
def there(outside):
    (outside.folder / "pushed.py").write_text(METHOD)
    return outside


def summary(there, folder):
    return json.loads((there.folder / folder / "summary.json").read_text())


def test_it_is_the_wheel_that_runs(there):
    where = there("python", "-c", "import fedddp; print(fedddp.__file__)")
    assert where.startswith(str(there.venv))


def test_by_command_line_on_two_ranks_and_under_torchrun(there):
    there("fedddp", "run", *CASE, "--ranks", 2, "--out", "two")
    there("fedddp", "run", *CASE, "--ranks", 1, "--out", "one")
    there("torchrun", "--standalone", "--nproc-per-node=2", "-m", "fedddp", "run", *CASE, "--out", "torchrun")
    sums = {summary(there, name)["checksum"] for name in ("one", "two", "torchrun")}
    assert len(sums) == 1
    assert summary(there, "two")["world_size"] == summary(there, "torchrun")["world_size"] == 2
    assert summary(there, "one")["method"] == "Pushed"


def test_it_goes_on_after_a_kill(there):
    slow = [*CASE, "federation.rounds=150"]
    there("fedddp", "run", *slow, "--ranks", 1, "--out", "whole")
    process = there.start("fedddp", "run", *slow, "--ranks", 2, "--out", "killed", start_new_session=True)
    until = time.monotonic() + 120
    while not list((there.folder / "killed" / "checkpoints").glob("round-*")):
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    assert not (there.folder / "killed" / "summary.json").exists(), "it was too quick to be killed"
    said = there("fedddp", "run", *slow, "--ranks", 2, "--out", "killed", "--resume")
    assert "goes on after round" in said
    assert summary(there, "killed")["checksum"] == summary(there, "whole")["checksum"]


def test_it_predicts_and_reports(there):
    np.savez(there.folder / "inputs.npz", inputs=np.zeros((3, 8, 8), dtype=np.uint8))
    there("fedddp", "predict", "one", "inputs.npz", "--out", "predictions.npz")
    with np.load(there.folder / "predictions.npz") as found:
        assert found["probabilities"].shape == (3, 10)
    assert "Pushed" in there("fedddp", "report", "one", "two")
    there("fedddp", "report", "one", "--out", "page.html")
    assert "Pushed" in (there.folder / "page.html").read_text()


def test_it_passes_the_contract_tests(there):
    said = there("fedddp", "check", "pushed.py:Pushed")
    assert "FAILED" not in said


def test_a_mistake_fails_the_contract_tests(there):
    (there.folder / "hidden.py").write_text(
        METHOD.replace("fit.theta - server.theta\n", "torch.randn_like(fit.theta)\n")
    )
    said = there("fedddp", "check", "hidden.py:Pushed", code=1)
    assert "FAILED" in said


def test_in_a_sweep_on_slurm(there, slurm, tmp_path):
    profile = {"partition": "main", "time": 30, "memory": 1, "gloo_interface": "lo"}
    (there.folder / "profile.yaml").write_text(json.dumps(profile))
    words = ["method=pushed.py:Pushed,fedavg", "method.part=0.5", "federation.rounds=3", "seed=0..1"]
    options = [
        "--cluster",
        "slurm",
        "--profile",
        "profile.yaml",
        "--ranks",
        2,
        "--nodes",
        2,
        "--out",
        "swept",
        "--wait",
    ]
    there("fedddp", "sweep", *words, *options)
    done = sorted(path.parent.name.partition("-")[0] for path in Path(there.folder, "swept").glob("*/summary.json"))
    assert done == ["Pushed", "Pushed", "fedavg", "fedavg"]
    there("fedddp", "run", "method=pushed.py:Pushed", "federation.rounds=3", "seed=1", "--ranks", 1, "--out", "alone")
    told = [json.loads(path.read_text()) for path in Path(there.folder, "swept").glob("Pushed-*/summary.json")]
    assert summary(there, "alone")["checksum"] in {one["checksum"] for one in told}
    assert {one["world_size"] for one in told} == {2}


def test_in_a_script_under_srun(there, slurm):
    (there.folder / "script.py").write_text(
        "import fedddp\n"
        "run = fedddp.run('digits', method='pushed.py:Pushed', rounds=3, seed=1, quiet=True, folder='srun')\n"
    )
    python = there.venv / "bin" / "python"
    command = ["srun", "--partition=main", "--ntasks=2", "--nodes=1", "--mem=1G", "--time=5", python, "script.py"]
    env = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=there.folder, env=env, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert summary(there, "srun")["world_size"] == 2
    assert summary(there, "srun")["checksum"] == summary(there, "alone")["checksum"]
