"""What takes minutes: `./launch/test --long` runs these, and what is marked long in other rooms."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.slurm.conftest import slurm  # noqa: F401  a fixture
from tests.test_wheel import build_wheel

TREE = Path(__file__).parents[2]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.long)


@dataclass(frozen=True)
class Outside:
    """A fresh environment with the wheel in it, and a folder far from the source tree."""

    venv: Path
    folder: Path

    def start(self, *words: object, **options: object) -> "subprocess.Popen[str]":
        env = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "VIRTUAL_ENV", "RANK", "WORLD_SIZE")}
        program, *rest = map(str, words)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return subprocess.Popen([self.venv / "bin" / program, *rest], cwd=self.folder, env=env, **{**pipes, **options})

    def __call__(self, *words: object, code: int = 0) -> str:
        process = self.start(*words)
        out, err = process.communicate(timeout=600)
        assert process.returncode == code, f"{words}: {out}\n{err}"
        return out + err


@pytest.fixture(scope="session")
def outside(tmp_path_factory: pytest.TempPathFactory) -> Outside:
    """As a user installs it: torch first, then the pinned rest without dependencies, then the wheel."""
    work = tmp_path_factory.mktemp("outside")
    venv = work / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    pip = [venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, os.environ.get("FEDDDP_TORCH", "torch==2.13.0")], check=True)
    subprocess.run([*pip, "--no-deps", "-r", TREE / "requirements.lock"], check=True)
    subprocess.run([*pip, "--no-deps", build_wheel(work)], check=True)
    folder = work / "mine"
    folder.mkdir()
    return Outside(venv, folder)
