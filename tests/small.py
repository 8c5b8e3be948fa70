"""Small runs for tests: seven unequal clients with a part of the digits, and what every method needs there."""

import shutil
from pathlib import Path
from typing import Any

import torch

from fedddp import config as configuration
from fedddp import registry
from fedddp.config import Config
from fedddp.exchange import Exchange
from fedddp.job import Job

METHODS = registry.names("method")
SMALL = [
    "data.name=digits",
    "data.test_fraction=0.85",
    "split.clients=7",
    "split.minimum=4",
    "federation.rounds=3",
    "federation.check_every=1",
    "evaluation.every=3",
    "evaluation.samples=2",
    "evaluation.histograms=0",  # nor pictures, which take longer than the run
    "federation.cohort_width=3",  # several clients a cohort, so that bits would show a rank-dependent grouping
    "local.batch_size=8",
    "local.epochs=1",
]
MODELS = {
    "mlp": ["model.name=mlp", "model.hidden=[12]"],
    "conv": ["model.name=cnn", "model.channels=[4,8]", "model.groups=2"],
}
SETTINGS: dict[str, list[str]] = {  # what a method needs beyond its defaults to be quick on this data
    "dense": ["method.epochs=2", "method.generator_steps=2", "method.batch_size=16", "method.width=4"],
    "fedbens": ["method.structure=last", "method.members=2", "method.steps=4"],  # kron has no factors for GroupNorm
    "fedlap_func": ["method.steps=4"],
    "fedfisher": ["method.fisher=diag", "method.steps=4"],
    # eigenvectors of 910 parameters take seconds and have their own test; plain Newton steps are too long for a network
    "fednl": ["method.compressor=top", "method.decay=0.1"],
}


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
