"""A newcomer's way, by what the Start pages say and nothing else: the pages are the script."""

import json
import os
import re
import resource
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.docs import blocks
from tests.docs.blocks import TREE
from tests.test_wheel import build_wheel

START = TREE / "docs" / "start"
MINUTES = 10


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory):
    """An empty folder with what one is given: the wheel and the list of versions; and a new environment."""
    work = tmp_path_factory.mktemp("newcomer")
    subprocess.run(["python3", "-m", "venv", work / "venv"], check=True)
    (work / "built").mkdir()
    folder = work / "home"
    folder.mkdir()
    shutil.copy(build_wheel(work / "built"), folder)
    shutil.copy(TREE / "requirements.lock", folder)
    return folder


def follow(folder: Path, script: str) -> str:
    """What bash prints when it runs the page."""
    inner = {"PYTHONPATH", "VIRTUAL_ENV", "RANK", "WORLD_SIZE", "FEDDDP_DATA"}
    env = {key: value for key, value in os.environ.items() if key not in inner}
    env |= {"PATH": f"{folder.parent}/venv/bin:{os.environ['PATH']}", "HOME": str(folder), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(["bash", "-c", script], cwd=folder, env=env, capture_output=True, text=True, timeout=1000)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def processor_seconds() -> float:
    """Of all that was run and has ended; the clock also counts downloads, and what else a machine is doing."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def from_a_wheel(page: str) -> str:
    """The first page without its part about the source tree, which a newcomer with a wheel skips."""
    return re.sub(r"## From the source tree.*?(?=## From a wheel)", "", page, flags=re.DOTALL)


def script(name: str, folder: Path) -> str:
    page = folder.parent / name
    page.write_text(from_a_wheel((START / name).read_text()))
    return blocks.script(page)


def test_from_nothing_to_all_of_it(newcomer):
    """A model on one's own table, a prediction, an own method beside two others, a page: ten minutes of a processor."""
    start, used, said = time.monotonic(), processor_seconds(), {}
    for name in ("index.md", "python.md", "table.md", "model.md", "method.md", "project.md"):
        said[name] = follow(newcomer, script(name, newcomer))
    minutes, used = (time.monotonic() - start) / 60, (processor_seconds() - used) / 60

    where = follow(newcomer, "python -c 'import fedddp; print(fedddp.__file__)'")
    assert where.startswith(str(newcomer.parent / "venv")), "it is the wheel that ran"
    assert json.loads((newcomer / "runs/wines/summary.json").read_text())["accuracy"] > 0.9
    assert "entropy" in said["table.md"]
    compared = [json.loads(path.read_text()) for path in (newcomer / "runs/compared").glob("*/summary.json")]
    assert sorted(one["method"] for one in compared) == ["Mine"] * 3 + ["fedavg"] * 3 + ["feddyn"] * 3
    assert "Mine" in (newcomer / "compared.html").read_text()
    assert "FAILED" not in said["method.md"]
    assert "4 passed" in said["project.md"]
    print(f"{used:.1f} minutes of a processor, {minutes:.1f} by the clock")
    assert used < MINUTES


PAGES = ("understand/bits.md", "understand/sent.md", "reference/files.md", "do/resume.md", "do/data.md", "do/sweeps.md")
ELSEWHERE = re.compile(
    r"^(slurm/sandbox|srun|torchrun|fedddp (status|logs|cancel)|.*--cluster slurm)\b.*$", re.MULTILINE
)


@pytest.mark.parametrize("name", PAGES)
def test_a_page_runs_whole(name, newcomer, tmp_path):
    """But for what needs a cluster, whose tests are in tests/jobs and tests/slurm."""
    folder = newcomer.parent / tmp_path.name
    folder.mkdir()
    follow(folder, ELSEWHERE.sub("", blocks.script(TREE / "docs" / name)))


def test_the_site_is_built_without_a_warning(tmp_path):
    done = subprocess.run([TREE / "launch" / "docs"], capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (TREE / "build" / "site" / "choose" / "bayes_admm" / "index.html").is_file()
