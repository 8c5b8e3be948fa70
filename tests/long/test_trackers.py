"""W&B and MLflow, which are not among our packages, in an environment that has them beside all that this one has."""

import subprocess
import sys
import sysconfig
from pathlib import Path

from tests.docs.blocks import TREE

PACKAGES = ("wandb==0.31.0", "mlflow-skinny==3.17.2")


def test_wandb_and_mlflow_in_their_offline_modes(tmp_path):
    """tests/records/test_trackers.py skips them where they are not installed; here they are."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES], check=True)
    (packages,) = (tmp_path / "venv" / "lib").glob("python3*/site-packages")
    beside = [sysconfig.get_paths()["purelib"], *(path for path in sys.path if Path(path).name == "site-packages")]
    (packages / "beside.pth").write_text("".join(f"{path}\n" for path in dict.fromkeys(beside)))  # its own come first
    words = [python, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "-k", "mlflow or wandb"]
    done = subprocess.run([*words, "tests/records/test_trackers.py"], cwd=TREE, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
    assert "skipped" not in done.stdout
