"""The page that compares: its counts of lines are those of the scripts beside it, and ours runs."""

import ast
import re
import runpy
import shutil
import sys

import numpy as np
import pytest

import fedddp
from tests.docs.blocks import TREE

SCRIPTS = TREE / "docs" / "compare"
PAGE = (TREE / "docs" / "compare.md").read_text()
ROW = re.compile(r"^\| ([^|]+) \| ([^|]*\.py[^|]*) \| (\d+) \|", re.MULTILINE)


def lines(text: str) -> int:
    """Lines with code: neither blank, nor a comment, nor the script's docstring."""
    docstring = ast.parse(text).body[0]
    rest = text.splitlines()[docstring.end_lineno :]
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in rest)


def test_every_script_is_counted_as_the_page_says():
    told = {name: (re.findall(r"\((compare/[^)]+)\)", links), int(count)) for name, links, count in ROW.findall(PAGE)}
    assert len(told) == 5
    for name, (paths, count) in told.items():
        assert sum(lines((SCRIPTS.parent / path).read_text()) for path in paths) == count, name
    linked = {path.rpartition("/")[2] for paths, _ in told.values() for path in paths}
    assert linked == {path.name for path in SCRIPTS.glob("*.py")} - {"task.py", "measure.py"}


@pytest.fixture
def small(tmp_path):
    """The scripts, and a task of four small clients for them."""
    shutil.copytree(SCRIPTS, tmp_path / "scripts")
    random = np.random.default_rng(0)
    arrays = {"x": random.random((60, 784)), "x_test": random.random((20, 784))}
    arrays = {name: array.astype(np.float32) for name, array in arrays.items()}
    labels = {"y": random.integers(0, 10, 60), "y_test": random.integers(0, 10, 20), "sizes": np.array([5, 35, 12, 8])}
    np.savez(tmp_path / "scripts" / "task.npz", **arrays, **labels)
    return tmp_path / "scripts"


def test_ours_runs(small, monkeypatch, capsys):
    monkeypatch.chdir(small)
    monkeypatch.syspath_prepend(str(small))
    monkeypatch.setenv("ROUNDS", "2")
    monkeypatch.setattr(sys, "argv", ["with_fedddp.py", "1"])
    runpy.run_path("with_fedddp.py", run_name="__main__")
    (path,) = small.glob("runs/*/*/summary.json")
    run = fedddp.load(path.parent)
    assert run.summary["rounds"] == 2
    assert run.clients["examples"].tolist() == [5, 35, 12, 8]
    assert f"{run.metrics['accuracy'].iloc[-1]:.2f}" in capsys.readouterr().out


def test_processor_seconds_are_those_of_all_processes(monkeypatch):
    """Of a process that starts another, which computes for as many rounds as it is told."""
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import measure

    busy = "import os, time\nwhile time.process_time() < 0.5 * int(os.environ['ROUNDS']): pass\ntime.sleep(0.3)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-S', '-c', {busy!r}], check=True)"
    processor, clock = measure.total([sys.executable, "-S", "-c", outer], 2)
    assert 0.95 < processor < 1.6  # the system counts in hundredths
    assert clock > 1.2
