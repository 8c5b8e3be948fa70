"""A real Slurm for these tests: wherever root and apt are at hand, and always in CI."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SANDBOX = Path(__file__).parents[2] / "slurm" / "sandbox"
SETTINGS = {
    "NODES": "6",
    "GPUS": "2",
    "MAX_ARRAY": "2",  # so that a sweep of three is cut
    "NODE_TIMEOUT": "15",
    "REQUEUE_WAIT": "6",
}


def missing() -> str:
    """Why there can be no sandbox here; nothing if there can."""
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    return "" if shutil.which("apt-get") else "Slurm's packages need apt-get"


def sandbox(*words: str) -> str:
    done = subprocess.run([SANDBOX, *words], capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def slurm() -> Iterator[Path]:
    """The sandbox's folder; SLURM_CONF is set as long as it runs."""
    if missing() and os.environ.get("CI") != "true":
        pytest.skip(missing())
    folder = tempfile.mkdtemp(prefix="slurm-")  # short: unix sockets
    os.environ |= {f"SLURM_SANDBOX_{name}": value for name, value in SETTINGS.items()} | {"SLURM_SANDBOX_DIR": folder}
    try:
        sandbox("install")
        sandbox("start")
        os.environ["SLURM_CONF"] = f"{folder}/etc/slurm.conf"
        yield Path(folder)
    finally:
        sandbox("stop", "--purge")
        shutil.rmtree(folder, ignore_errors=True)
        for name in ("SLURM_CONF", "SLURM_SANDBOX_DIR", *(f"SLURM_SANDBOX_{name}" for name in SETTINGS)):
            os.environ.pop(name, None)
