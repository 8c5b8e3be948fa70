"""Every command that may take long counts seconds on a terminal, here a real pseudo-terminal; a log gets nothing."""

import os
import pty
import select
import time
from pathlib import Path

import numpy as np
import pytest

from fedddp.cli import main
from fedddp.core import progress
from fedddp.jobs import pool
from tests.data.writers import pixels
from tests.docs.blocks import TREE
from tests.forked import fedddp

FEW = ["data.test_fraction=0.8", "federation.rounds=1", "local.epochs=1", "evaluation.histograms=0"]
SAID = {  # while one waits
    "bench": "bench exchange",
    "check": "each example once",
    "data": "comparing processed.cleveland.data with its sum",
    "predict": "20 predictions",
    "ranking": "ranking",
    "reproduce": "collecting numbers",
    "run": "reading the data",
    "show": "reading the data",
    "split": "drawing",
    "sweep": "0 runs ended, 1 at work, 0 queued",
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A finished run and inputs for it."""
    out = tmp_path_factory.mktemp("trained")
    done = fedddp("run", "digits", *FEW, "--ranks", 1, "--out", out / "run")
    assert done.returncode == 0, done.stderr
    np.savez(out / "inputs.npz", inputs=pixels(20, 8, 8))
    return out


def words(command: str, out: Path, trained: Path) -> list[str]:
    found: dict[str, list[object]] = {
        "bench": ["exchange"],
        "check": ["iid"],
        "data": ["get", "heart", "--root", out],
        "predict": [trained / "run", trained / "inputs.npz", "--out", out / "p.npz"],
        "ranking": ["--results", out / "results.json", "--out", out],
        "reproduce": ["hwa_fig8", "--collect", "--out", out, "--results", out / "results.json"],
        "run": ["digits", *FEW, "--ranks", 2, "--out", out / "run"],
        "show": ["digits"],
        "split": ["digits", "--out", out / "split.png"],
        "sweep": ["digits", *FEW, "--wait", "--out", out],
    }
    return [command, *map(str, found[command])]


def impatient(given: list[str], errors: str, patience: float) -> None:
    """A command in a process of its own that writes its errors there."""
    for number, name in ((1, os.devnull), (2, errors)):
        with open(name, "w") as file:
            os.dup2(file.fileno(), number)
    progress.PATIENCE, progress.PACE = patience, 0.1
    main(given)


def start(given: list[str], errors: str, patience: float = 0.0):
    process = pool.warm().Process(target=impatient, args=(given, errors, patience))
    process.start()
    return process


@pytest.mark.parametrize("command", SAID)
def test_a_terminal_sees_what_one_waits_for(command, tmp_path, trained):
    if command == "data":  # a file of the right name and size: its sum is compared
        (tmp_path / "heart").mkdir()
        (tmp_path / "heart" / "processed.cleveland.data").write_bytes(bytes(18461))
    ours, theirs = pty.openpty()
    process, text = start(words(command, tmp_path, trained), os.ttyname(theirs)), ""
    until, wanted = time.monotonic() + 120, f"{progress.WIPE}{SAID[command]}: "
    while wanted not in text and (process.is_alive() or select.select([ours], [], [], 0)[0]):
        assert time.monotonic() < until, text[-200:]
        if select.select([ours], [], [], 0.1)[0]:
            text += os.read(ours, 4096).decode()
    process.kill()
    process.join()
    os.close(ours)
    os.close(theirs)
    assert wanted in text, text[-200:]


@pytest.mark.parametrize("command", ["predict", "run", "show", "split", "sweep"])
def test_a_log_gets_nothing(command, tmp_path, trained):
    log = tmp_path / "log"
    process = start(words(command, tmp_path, trained), str(log))
    process.join(120)
    assert process.exitcode == 0
    assert log.read_text() == ""


def test_the_site_is_waited_for(monkeypatch):
    """As MkDocs calls its hook: from before the build until it is done or has failed."""
    monkeypatch.syspath_prepend(str(TREE / "docs" / "site"))
    import hook

    for over in (lambda: hook.on_post_build({}), lambda: hook.on_build_error(ValueError("no such page"))):
        ours, theirs = pty.openpty()
        with os.fdopen(theirs, "w") as terminal, monkeypatch.context() as patch:
            patch.setattr("sys.stderr", terminal)
            patch.setattr(progress, "PATIENCE", 0.0)
            hook.on_pre_build({})
            time.sleep(0.2)
            over()
            terminal.write("end")
            terminal.flush()
            text = ""
            while not text.endswith("end"):
                text += os.read(ours, 4096).decode()
        assert text.startswith(f"{progress.WIPE}building the site: 0 s\r")
        assert text.endswith(f"{progress.WIPE}end")
        os.close(ours)
