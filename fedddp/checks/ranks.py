"""A function in forked processes that make up one world, and what it returns there."""

import os
import pickle
import signal
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from fedddp.checks import small
from fedddp.checks.rows import Failure
from fedddp.clients.oracle import Oracle
from fedddp.config.loading import Config
from fedddp.core import trace
from fedddp.exchange.group import Exchange, RankLost
from fedddp.jobs import here
from fedddp.rounds.failures import Failed
from fedddp.runs.build import make_task
from fedddp.runs.job import Job
from fedddp.runs.rank import STOPPED

CPU = torch.device("cpu")


class Answer(NamedTuple):
    value: Any = None
    failure: str = ""
    whole: str = ""  # the failure's trace
    follows: bool = False  # it is the consequence of another rank's


class Stopped(BaseException):
    """Stands for SIGKILL: no handler of the run's sees it."""


def warm() -> None:
    """Make a gradient of several clients here: the first costs half a second, which forked processes then save.

    Not beside a GPU: there processes are started anew. And not before the check of the pretended device: torch must
    meet a new device before its first gradient.
    """
    if torch.cuda.is_available():
        return
    torch.set_num_threads(1)
    task = make_task(small.load([], *small.MODELS["conv"]), CPU)
    inputs, targets = task.data.gather(torch.arange(4).view(2, 2), task.dtype)
    Oracle(task.module, task.layout, task.objective)(task.initial.repeat(2, 1), inputs, targets)


def apart(work: Callable[[], Any], ranks: int = 1) -> list[Any]:
    """What `work` returns in each of `ranks` new processes; a Failure if it raises in one."""
    with tempfile.TemporaryDirectory() as name:
        code = here.start(partial(_answer, work, Path(name)), ranks)
        if code == STOPPED:  # Ctrl-C reaches the ranks, and is meant for all checks
            raise KeyboardInterrupt
        answers = [_read(Path(name) / str(rank), code) for rank in range(ranks)]
    failed = sorted((answer for answer in answers if answer.failure), key=lambda answer: answer.follows)
    if failed:
        raise Failure(failed[0].failure, failed[0].whole)
    return [answer.value for answer in answers]


def train(config: Config, folder: Path, ranks: int, resume: bool = False, stop_after: int = 0) -> dict[str, Any]:
    """The summary of a run; empty if it was stopped after that round."""
    summary: dict[str, Any] = apart(partial(_train, config, folder, resume, stop_after), ranks)[0]
    return summary


def _train(config: Config, folder: Path, resume: bool, stop_after: int) -> dict[str, Any]:
    def stop(finished: int) -> None:
        if finished == stop_after:
            raise Stopped

    exchange = Exchange.connect(CPU, config.federation.timeout)
    try:
        return Job(config, folder, exchange, CPU, quiet=True, after_round=stop).run(resume) or {}
    except Stopped:
        return {}


def _answer(work: Callable[[], Any], folder: Path) -> int:
    """One rank's part: its answer is a file, since a process returns a number only."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # how a stop is passed on to ranks
    try:
        answer = Answer(work())
    except Exception as error:
        answer = _failure(error)
    (folder / os.environ.get("RANK", "0")).write_bytes(pickle.dumps(answer))
    return 1 if answer.failure else 0


def _failure(error: Exception) -> Answer:
    if isinstance(error, Failed):  # its text names the client, the error and the line already
        return Answer(None, str(error), error.trace or trace.whole(error))
    return Answer(None, trace.told(error), trace.whole(error), isinstance(error, RankLost))


def _read(path: Path, code: int) -> Answer:
    if path.exists():
        answer: Answer = pickle.loads(path.read_bytes())  # written by our own process a moment ago
        return answer
    return Answer(failure=f"rank {path.name} ended without an answer (exit code {code})", follows=True)
