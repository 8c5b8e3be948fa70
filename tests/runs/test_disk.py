"""The disk fills up, cannot be written to, or the folder goes away: one clear line, and nothing wrong later."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests import forked
from tests.jobs.command import SLOW
from tests.small import MODELS, settings

ROOT = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/proc/mounts").exists(), reason="mounting a small disk needs root on Linux"
)
WORDS = ["run", *settings("feddyn", *MODELS["mlp"], "checkpoint.every=1", "evaluation.every=1")]


@contextmanager
def disk(folder: Path) -> Iterator[Path]:
    """A small disk of its own."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("tmpfs cannot be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path, room: int) -> None:
    """But for so many bytes."""
    free = os.statvfs(folder)
    (folder / "filler").write_bytes(bytes(free.f_bavail * free.f_bsize - room))


def complaint(run: forked.Forked) -> str:
    """The one line that a failed run says; its progress stands elsewhere."""
    assert run.returncode == 1, run.stderr
    assert "Traceback" not in run.stderr
    assert "Exception in thread" not in run.stderr
    (line,) = [line for line in run.stderr.splitlines() if line.startswith("fedddp: ")]
    return line


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> str:
    out = tmp_path_factory.mktemp("whole") / "run"
    assert forked.fedddp(*WORDS, "--out", out, "--ranks", 1).returncode == 0
    return json.loads((out / "summary.json").read_text())["checksum"]


@ROOT
def test_a_disk_that_fills_up_names_the_file_and_the_run_goes_on_when_there_is_room(tmp_path, whole):
    """Wherever it happens: config.yaml, metrics, events, clients.json, a checkpoint, the results."""
    named = set()
    with disk(tmp_path / "disk") as place:
        for room in range(0, 1000, 4):
            out = place / "run"
            shutil.rmtree(out, ignore_errors=True)
            fill(place, room << 10)
            run = forked.fedddp(*WORDS, "--out", out, "--ranks", 1, ranks=1 + (room == 60))
            if run.returncode == 0:
                break
            line = complaint(run)
            assert "No space left on device: '" in line, line
            named.add(Path(line.split("'")[1]).name)
            (place / "filler").unlink()
            again = forked.fedddp(*WORDS, "--out", out, "--ranks", 1, "--resume")
            assert again.returncode == 0, again.stderr
            assert json.loads((out / "summary.json").read_text())["checksum"] == whole
            rounds = [json.loads(text)["round"] for text in (out / "metrics.jsonl").read_text().splitlines()]
            assert rounds == [1, 2, 3]
    assert {"config.yaml", "clients.json", "metrics.jsonl", "about.json", "server.safetensors"} <= named
    assert any(name.startswith("events.") for name in named)


@pytest.mark.parametrize("how", ["moved", "replaced"])
def test_a_folder_that_goes_away_ends_the_run(tmp_path, how):
    (tmp_path / "pace").write_text("0.02")
    words = ["method=feddyn", "federation.rounds=150", f"model={SLOW}:Slow", "local.epochs=1", "split=iid"]
    words += ["split.clients=4", "data.test_fraction=0.8", "checkpoint.every=1000", "evaluation.histograms=0"]
    out = tmp_path / "run"
    run = forked.start("run", *words, "--out", out, ranks=2, SLOW=str(tmp_path / "pace"))
    until = time.monotonic() + 60
    while not (out / "metrics.jsonl").exists() or (out / "metrics.jsonl").read_text().count("\n") < 2:
        assert time.monotonic() < until, run.stderr
        time.sleep(0.01)
    out.rename(tmp_path / "elsewhere")
    if how == "replaced":
        shutil.copytree(tmp_path / "elsewhere", out)
    shutil.rmtree(tmp_path / "elsewhere")
    line = complaint(run.wait())
    assert line.startswith(f"fedddp: {out}/")  # metrics or events, whichever is written next
    assert "was removed or replaced while the run was at work" in line
    assert not (out / "summary.json").exists()
    assert "rounds in" not in run.stdout


def test_a_removed_folder_is_not_made_again(tmp_path):
    """Also where a checkpoint is the next thing to be written."""
    from fedddp.rounds import checkpoint

    with pytest.raises(FileNotFoundError):
        checkpoint.save(tmp_path / "gone" / "checkpoints", 1, None, None, _Alone())
    assert not (tmp_path / "gone").exists()


class _Alone:
    """A world of one, whose failures are the caller's."""

    rank, world_size = 0, 1

    def together(self, failure: str) -> None:
        if failure:
            raise FileNotFoundError(failure)


@ROOT
def test_a_report_of_runs_that_are_read_only(tmp_path):
    with disk(tmp_path / "disk") as place:
        assert forked.fedddp(*WORDS, "--out", place / "run", "--ranks", 1).returncode == 0
        subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
        try:
            told = forked.fedddp("report", place)
            assert (told.returncode, told.stderr) == (0, "")
            assert "feddyn" in told.stdout
            page = forked.fedddp("report", place, "--format", "html")
            assert page.returncode == 0
            assert page.stdout == told.stdout
            (line,) = page.stderr.splitlines()
            assert line == (
                f"fedddp: {place}/report.html: cannot be written (Read-only file system); name another file with --out"
            )
            asked = forked.fedddp("report", place, "--out", place / "table.csv")
            assert asked.returncode == 1
            assert asked.stdout.startswith("method,")
            assert "table.csv: cannot be written" in asked.stderr
            assert forked.fedddp("status", place).returncode == 0
        finally:
            subprocess.run(["mount", "-o", "remount,rw", str(place)], check=True)
