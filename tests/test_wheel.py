"""The wheel, installed elsewhere, is a working command with its built-in experiments."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

TREE = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files in a folder of their own, far from the source tree."""
    work = tmp_path_factory.mktemp("wheel")
    copy = work / "tree"  # a build leaves files behind, which a later build would take in
    shutil.copytree(TREE, copy, ignore=shutil.ignore_patterns(".*", "runs", "build", "*.egg-info", "__pycache__"))
    options = ["--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(work)]
    subprocess.run([sys.executable, "-m", "pip", "wheel", *options, str(copy)], check=True, capture_output=True)
    target = work / "site"
    with zipfile.ZipFile(next(work.glob("fedddp-*.whl"))) as wheel:
        wheel.extractall(target)
    return target


def call(installed: Path, cwd: Path, *words: str) -> str:
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")} | {"PYTHONPATH": str(installed)}
    command = [sys.executable, "-c", "import sys, fedddp.cli; fedddp.cli.main(sys.argv[1:])", *words]
    result = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False, timeout=120)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_the_wheel_runs_a_built_in_experiment(installed, tmp_path):
    where = call(installed, tmp_path, "show", "digits")
    assert "experiment digits" in where
    shown = call(installed, tmp_path, "run", "digits", "federation.rounds=1", "local.epochs=1", "--ranks", "1")
    assert "fedavg: 1 rounds" in shown
    assert (tmp_path / "runs" / "digits").is_dir()


def test_every_experiment_and_profile_is_inside(installed):
    ours = {path.name for path in (TREE / "configs" / "experiment").glob("*.yaml")}
    assert {path.name for path in (installed / "fedddp" / "configs" / "experiment").glob("*.yaml")} == ours
    methods = {path.name for path in (TREE / "configs" / "method").glob("*.yaml")}
    assert {path.name for path in (installed / "fedddp" / "configs" / "method").glob("*.yaml")} == methods
    packages = {str(path.relative_to(TREE)) for path in (TREE / "fedddp").rglob("*.py")}
    assert packages == {str(path.relative_to(installed)) for path in (installed / "fedddp").rglob("*.py")}
