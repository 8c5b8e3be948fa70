"""Ranks that a launcher starts on this machine leave nothing behind, even if the launcher is killed."""

import signal
import subprocess
import sys

import pytest

from tests.jobs.command import SLOW, await_, environment
from tests.soak.restarts import alive, children

WORDS = ["method=feddyn", "federation.rounds=50", "federation.rows=file", "data.test_fraction=0.8"]
WORDS += [f"model.name={SLOW}:Slow", "evaluation.histograms=0", "federation.timeout=20"]
# What happens beside GPUs, where ranks cannot be forked.
TORCHRUN = """
import sys
from functools import partial
from pathlib import Path
from fedddp.jobs import here
from fedddp.config import loading as config
from fedddp.runs import rank
settings = config.load(None, sys.argv[2:])
sys.exit(here._torchrun(partial(rank.work, settings, Path(sys.argv[1]), False), 2, False))
"""


@pytest.mark.parametrize("way", ["fork", "torchrun"])
def test_a_killed_launcher_leaves_no_process_and_nothing_in_tmpdir(tmp_path, way):
    scratch, out, pace = (tmp_path / name for name in ("scratch", "run", "pace"))
    scratch.mkdir()
    pace.write_text("0.05")
    command = ["-m", "fedddp", "run", "--ranks", "2", "--out"] if way == "fork" else ["-c", TORCHRUN]
    env = environment(TMPDIR=str(scratch), SLOW=str(pace), OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
    with open(tmp_path / "log", "w") as log:
        run = subprocess.Popen([sys.executable, *command, str(out), *WORDS], env=env, stdout=log, stderr=log)
    metrics = out / "metrics.jsonl"
    try:
        await_("two rounds", lambda: metrics.exists() and metrics.read_text().count("\n") >= 2, 120)
        ranks = children(run.pid)
        assert len(ranks) >= 2
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    await_("the end of the ranks", lambda: not any(map(alive, ranks)), 60)
    assert [str(path.relative_to(scratch)) for path in scratch.rglob("*")] == []
    assert list((out / "checkpoints").glob("round-*")), (tmp_path / "log").read_text()


# An agent of torchrun that is killed while its only rank still imports torch.
GONE = """
import subprocess, sys
subprocess.Popen(sys.argv[1:])
"""


def test_a_rank_whose_launcher_was_gone_before_it_came_up_ends(tmp_path):
    out, log = tmp_path / "run", tmp_path / "log"
    command = [sys.executable, "-m", "fedddp", "run", "--out", str(out), *WORDS]
    env = environment(TORCHELASTIC_RUN_ID="gone", RANK="0", WORLD_SIZE="1", LOCAL_RANK="0", OMP_NUM_THREADS="1")
    env |= {"SLOW": str(tmp_path / "pace"), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29599"}
    (tmp_path / "pace").write_text("0.05")
    with open(log, "w") as file:
        subprocess.run([sys.executable, "-c", GONE, *command], env=env, stdout=file, stderr=file, check=True)
    await_("its last words", lambda: "the launcher that started this rank is gone" in log.read_text(), 120)
    assert not (out / "metrics.jsonl").exists()
