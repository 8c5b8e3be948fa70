"""Small runs for tests: seven unequal clients with a part of the digits, and what every method needs there."""

import shutil
from pathlib import Path
from typing import Any

import torch

from fedddp.checks.small import MODELS, SETTINGS, SMALL
from fedddp.config import loading as configuration
from fedddp.config.loading import Config
from fedddp.core import registry
from fedddp.exchange.group import Exchange
from fedddp.runs.job import Job

__all__ = ["METHODS", "MODELS", "SETTINGS", "SMALL", "Killed", "fresh", "run", "settings"]
METHODS = registry.names("method")


def settings(method: str, *more: str) -> list[str]:
    return [f"method={method}", *SMALL, *SETTINGS.get(method, []), *more]


class Killed(BaseException):
    """Stands for SIGKILL where the test shares a process with the run."""


def run(words: list[str] | Config, folder: str, resume: bool = False, kill_after: int = 0) -> dict[str, Any] | None:
    """One rank's part of a run, in the process group that is there; None if it was killed.

    Many ranks are handed the configuration itself: each would need as long to load it as for the run.
    """
    config = words if isinstance(words, Config) else configuration.load(None, words)
    job = Job(config, Path(folder), Exchange(), torch.device("cpu"), quiet=True)

    def maybe_die(finished: int) -> None:
        if finished == kill_after:
            raise Killed

    job.after_round = maybe_die
    try:
        return job.run(resume)
    except Killed:
        return None


def fresh(folder: Path, name: str) -> str:
    path = folder / name
    shutil.rmtree(path, ignore_errors=True)
    return str(path)
