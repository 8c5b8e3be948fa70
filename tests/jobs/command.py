"""The command as a user types it, and what it leaves, for the tests of jobs."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

SLOW = Path(__file__).with_name("slow.py")
# Few examples, several rounds, methods with memory: what a run is interrupted in.
SMALL = ["data.test_fraction=0.8", "split=iid", "split.clients=4", "local.epochs=1", "local.batch_size=512"]
SMALL += [f"model={SLOW}:Slow", "method=federated_admm", "evaluation.every=6", "evaluation.histograms=0"]


def environment(**more: str) -> dict[str, str]:
    """Ours, without what an outer run or job says."""
    foreign = ("RANK", "WORLD_SIZE", "SLURM_JOB", "SLURM_ARRAY", "SLURM_STEP")
    return {name: value for name, value in os.environ.items() if not name.startswith(foreign)} | more


def fedddp(*words: object, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "fedddp", *map(str, words)]
    return subprocess.run(command, env=environment(**env), capture_output=True, text=True, timeout=600, check=False)


def start(*words: object, **env: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "fedddp", *map(str, words)]
    return subprocess.Popen(
        command, env=environment(**env), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def runs(out: Path) -> list[Path]:
    return sorted(path.parent for path in out.glob("*/config.yaml"))


def checksums(out: Path) -> dict[str, str]:
    """Run -> checksum, of finished runs."""
    return {run.name: json.loads((run / "summary.json").read_text())["checksum"] for run in finished(out)}


def finished(out: Path) -> list[Path]:
    return [run for run in runs(out) if (run / "summary.json").exists()]


def rounds(out: Path) -> int:
    """Rounds done by all runs of a folder together."""
    return sum(len(path.read_text().splitlines()) for path in out.glob("*/metrics.jsonl"))


def await_(what: str, true: Callable[[], object], seconds: float = 300.0) -> None:
    until = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < until, f"waited {seconds:.0f} s for: {what}"
        time.sleep(0.3)
