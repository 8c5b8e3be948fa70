"""The wheel, installed elsewhere, is a working command with its built-in experiments."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

TREE = Path(__file__).parent.parent


def _left_behind(folder: str, names: list[str]) -> set[str]:
    """What is not part of the source; people's runs lie at the top, and fedddp/runs is a package."""
    top = {"runs"} if Path(folder) == TREE else set()
    return top | shutil.ignore_patterns(".*", "build", "*.egg-info", "__pycache__")(folder, names)


def build_wheel(work: Path) -> Path:
    """The wheel, made from a copy: a build leaves files behind, which a later build would take in."""
    copy = work / "tree"
    shutil.copytree(TREE, copy, ignore=_left_behind)
    build = "import sys, setuptools.build_meta as backend; backend.build_wheel(sys.argv[1])"  # what `pip wheel` calls
    built = subprocess.run([sys.executable, "-c", build, str(work)], cwd=copy, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    return next(work.glob("fedddp-*.whl"))


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's files in a folder of their own, far from the source tree."""
    work = tmp_path_factory.mktemp("wheel")
    target = work / "site"
    with zipfile.ZipFile(build_wheel(work)) as wheel:
        wheel.extractall(target)
    return target


COMMAND = """
import contextlib, sys, fedddp.cli
for words in ("show digits", "run digits federation.rounds=1 local.epochs=1 evaluation.histograms=0 --ranks 1"):
    with contextlib.suppress(SystemExit):
        fedddp.cli.main(words.split())
print("from", fedddp.__file__)
"""


def test_the_wheel_runs_a_built_in_experiment(installed, tmp_path):
    env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")} | {"PYTHONPATH": str(installed)}
    command = [sys.executable, "-c", COMMAND]
    result = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert "# experiment digits" in result.stdout
    assert "fedavg: 1 rounds" in result.stdout
    assert f"from {installed}" in result.stdout
    assert (tmp_path / "runs" / "digits").is_dir()


def test_every_experiment_and_profile_is_inside(installed):
    ours = {path.name for path in (TREE / "configs" / "experiment").glob("*.yaml")}
    assert {path.name for path in (installed / "fedddp" / "configs" / "experiment").glob("*.yaml")} == ours
    methods = {path.name for path in (TREE / "configs" / "method").glob("*.yaml")}
    assert {path.name for path in (installed / "fedddp" / "configs" / "method").glob("*.yaml")} == methods
    packages = {str(path.relative_to(TREE)) for path in (TREE / "fedddp").rglob("*.py")}
    project = {f"fedddp/{path.relative_to(TREE)}" for path in (TREE / "configs" / "project").glob("*.*")}
    inside = {str(path.relative_to(installed)) for path in (installed / "fedddp").rglob("*.py")}
    assert packages | {name for name in project if name.endswith(".py")} == inside
    assert all((installed / name).is_file() for name in project)
