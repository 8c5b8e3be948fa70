"""The command as a user types it: real processes, real files, one clear line for every mistake."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from fedddp.cli import main
from tests import forked

FEW = ["federation.rounds=2", "data.test_fraction=0.8", "local.epochs=1"]


def fedddp(*words: str, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
    command = [sys.executable, "-m", "fedddp", *words]
    return subprocess.run(command, env=clean | env, capture_output=True, text=True, timeout=120, check=False)


def summary(folder: Path) -> dict:
    return json.loads((folder / "summary.json").read_text())


def test_run_on_two_ranks_equals_torchrun_and_one_rank(tmp_path):
    words = ["run", *FEW, "evaluation.histograms=0"]
    one = fedddp(*words, "--ranks", "1", "--out", str(tmp_path / "1"), PYTHONPROFILEIMPORTTIME="1")
    two = fedddp(*words, "--ranks", "2", "--out", str(tmp_path / "2"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", "-m", "fedddp"]
    out = tmp_path / "torchrun"
    other = subprocess.run(
        [*torchrun, *words, "--out", str(out)], capture_output=True, text=True, check=False, timeout=120
    )
    for result in (one, two, other):
        assert result.returncode == 0, result.stderr
    found = [summary(tmp_path / name) for name in ("1", "2", "torchrun")]
    assert len({s["checksum"] for s in found}) == 1
    assert [s["world_size"] for s in found] == [1, 2, 2]
    assert one.stdout.count("round 1/2") == two.stdout.count("round 1/2") == other.stdout.count("round 1/2") == 1
    imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in one.stderr.splitlines()}
    assert "fedddp" in imported
    assert not imported & {"laplace", "matplotlib", "pandas", "scipy", "sklearn"}, "a run waits only for what it needs"


def test_a_run_folder_holds_what_scripts_rely_on(tmp_path):
    result = forked.fedddp("run", *FEW, "method=federated_admm", "--ranks", "1", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    folder = Path(tmp_path / result.stdout.splitlines()[-1])
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    wanted = {"round", "accuracy", "nll", "ece", "brier", "train_loss", "seconds", "bytes", "active"}
    wanted |= {f"seconds_{part}" for part in ("local", "exchange", "server", "evaluate")}
    assert [line["round"] for line in lines] == [1, 2]
    for line in lines:
        assert wanted | {"primal_residual", "dual_residual"} <= set(line)
        parts = sum(line[f"seconds_{part}"] for part in ("local", "exchange", "server", "evaluate"))
        assert 0 < parts <= line["seconds"]
    found = summary(folder)
    keys = {"method", "rounds", "accuracy", "nll", "ece", "last_3_rounds", "seconds", "world_size", "checksum"}
    assert keys | {"config_hash", "split_hash", "torch", "cpu"} <= set(found)
    assert found["config_hash"] in folder.name
    assert (folder / "server.safetensors").exists()
    assert list(folder.glob("events.out.tfevents.*"))
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(folder)).Reload()
    assert [e.step for e in board.Scalars("1_quality/accuracy")] == [1, 2]
    assert "5_clients/train_loss" in board.Tags()["histograms"]


MISTAKES = {  # found before a run starts
    "unknown key": (["run", "federation.round=3"], "federation.round: unknown key; did you mean federation.rounds?"),
    "unknown section": (["run", "fedration.rounds=3"], "fedration: unknown key; did you mean federation?"),
    "wrong type": (["run", "local.epochs=2", "local.lr=fast"], "local.lr=fast: must be of type float"),
    "out of range": (["run", "federation.participation=1.5"], "federation.participation=1.5: must be in (0, 1]"),
    "negative lr": (["run", "local.lr=-1"], "local.lr=-1.0: must be a number above 0"),
    "unknown method": (["run", "method=fedavgg"], "method=fedavgg: unknown; did you mean fedavg?"),
    "unknown experiment": (["run", "digitz"], "experiment digitz: unknown; did you mean digits?"),
    "no such file": (["run", "mine.yaml"], "mine.yaml: no such file"),
    "not a setting": (["run", "digits", "rounds"], "'rounds': not understood; settings are written key=value"),
    "key of a section": (["run", "lr=0.1"], "lr: unknown key; did you mean local.lr?"),
    "empty test set": (["run", "data.test_fraction=0"], "data.test_fraction=0.0: must be in (0, 1)"),
    "environment": (["run", "data.root=${oc.env:HOME}"], "data.root=${oc.env:HOME}: ${...} is not filled in here"),
    "not a number": (["run", "local.lr=nan"], "local.lr=nan: must be a finite number"),
    "seed": (["run", "split.seed=abc"], "split.seed=abc: must be of type int"),
    "half a list": (["run", "model.hidden=[64"], "model.hidden=[64: not understood as YAML"),
    "large grid": (["sweep", "digits", "seed=0..1000000000"], "a grid of 1,000,000,001 points"),
    "no ranks": (["run", "--ranks", "0"], "--ranks 0: must be at least 1"),
    "no run": (["report", "nowhere"], "nowhere"),
}
LATE_MISTAKES = {  # found by the ranks
    "empty clients": (["split=iid", "split.clients=5000"], "use fewer clients (split.clients)"),
    "batch norm": (["model.name=tests/modules.py:WithBatchNorm"], "layer 'norm' is a BatchNorm1d"),
    "wrong outputs": (
        ["data=sklearn", "model.name=tests/modules.py:Tiny"],
        "model=Tiny: fails on an input of shape [30]",
    ),
    "no such module": (["model.name=no.such:Thing"], "model=no.such:Thing: no.such: cannot be imported"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_clear_line(mistake, capsys):
    words, message = MISTAKES[mistake]
    with pytest.raises(SystemExit) as stop:
        main(words)
    error = capsys.readouterr().err
    assert stop.value.code == 2
    assert message in error
    assert len(error.strip().splitlines()) == 1, error
    with pytest.raises(ValueError, match=re.escape(message)):  # --debug shows the traceback
        main([*words, "--debug"])


@pytest.mark.parametrize("mistake", LATE_MISTAKES)
def test_a_mistake_that_ranks_find_gets_one_clear_line_too(mistake, tmp_path):
    words, message = LATE_MISTAKES[mistake]
    ranks = 2 if mistake == "batch norm" else 1
    result = forked.fedddp("run", *words, "--ranks", 1, "--out", tmp_path / "run", ranks=ranks)
    assert result.returncode == 2
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1, result.stderr


def test_a_bad_client_is_named_once_over_all_ranks(tmp_path):
    result = forked.fedddp("run", *FEW, "local.lr=1e30", "--ranks", 2, "--out", tmp_path / "run")
    assert result.returncode == 1
    lines = result.stderr.strip().splitlines()
    assert len(lines) == 1, result.stderr
    assert "failed in round" in lines[0]
    assert "not finite" in lines[0]


def test_a_folder_of_another_run_is_refused(tmp_path):
    out = ["--ranks", "1", "--out", str(tmp_path / "run")]
    assert forked.fedddp("run", *FEW, *out).returncode == 0
    again = forked.fedddp("run", *FEW, *out)
    assert again.returncode != 0
    assert "holds this run already: add --resume" in again.stderr
    other = forked.fedddp("run", *FEW, "local.lr=0.05", *out)
    assert other.returncode != 0
    assert "another configuration: local.lr=0.1 (now 0.05)" in other.stderr
    resumed = forked.fedddp("run", *FEW, *out, "--resume")
    assert resumed.returncode == 0, "resuming a finished run is no error"


@pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/proc/mounts").exists(), reason="mounting a small disk needs root on Linux"
)
def test_a_full_disk_is_one_clear_line(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        words = ["model.hidden=[400,400]", "checkpoint.every=1", "federation.rounds=3", "local.epochs=1"]
        result = forked.fedddp("run", *words, "--out", disk / "run", ranks=2)
        assert result.returncode == 1
        assert "No space left on device" in result.stderr
        assert "Traceback" not in result.stderr
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_show_says_where_values_come_from(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["show", "digits", "--debug", "method=fedprox", "local.lr=0.3"])  # options and settings in any order
    assert stop.value.code == 0
    lines = {line.split(":")[0]: line for line in capsys.readouterr().out.splitlines()}
    assert lines["local.lr"].split() == ["local.lr:", "0.3", "#", "command", "line"]
    assert lines["method.delta"].endswith("# default")
    assert lines["split.clients"].endswith("# experiment digits")
    assert lines["local.name"].endswith("# configs/method/fedprox.yaml")


def test_list_names_everything(capsys):
    with pytest.raises(SystemExit):
        main(["list"])
    shown = capsys.readouterr().out
    for word in (
        "methods:",
        "fedavg",
        "solvers:",
        "adam",
        "models:",
        "mlp",
        "partitions:",
        "dirichlet",
        "experiments:",
    ):
        assert word in shown
