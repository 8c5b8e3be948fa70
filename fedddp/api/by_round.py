"""A federation round by round, the same on every rank."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from fedddp.api.configuring import configure
from fedddp.api.world import world
from fedddp.config.loading import Config
from fedddp.core.device import own_device
from fedddp.evaluation.evaluate import Evaluator
from fedddp.exchange.group import Exchange
from fedddp.rounds.federate import Federation
from fedddp.rounds.report import Report
from fedddp.runs.build import make_federation, make_task
from fedddp.runs.private import Privacy, make_privacy


class Result(NamedTuple):
    """A round that is over."""

    round: int  # counted from 1
    metrics: dict[str, float]
    server: Any  # the method's own memory
    report: Report


@dataclass
class Rounds:
    """A federation, round by round: the same on every rank."""

    config: Config
    federation: Federation
    server: Any
    done: int = 0
    privacy: Privacy | None = None

    def __iter__(self) -> Iterator[Result]:
        while self.done < self.federation.task.rounds and self._affords():
            yield self.step()

    def _affords(self) -> bool:
        """Whether privacy.epsilon allows for another round."""
        return self.privacy is None or self.privacy.affords(self.done + 1)

    def step(self) -> Result:
        """One round, and its evaluation."""
        self.server, report = self.federation.round(self.server, self.done)
        self.done += 1
        metrics = Evaluator(self.federation, self.config.evaluation.samples)(self.server, self.done).metrics
        if self.privacy is not None:
            metrics["epsilon"] = self.privacy.epsilon(self.done)
        return Result(self.done, metrics, self.server, report)

    @property
    def model(self) -> nn.Module:
        """The module with the server's present parameters."""
        task = self.federation.task
        task.module.load_state_dict(task.layout.views(self.federation.method.models(self.server)[0]), strict=False)
        return task.module


@contextmanager
def federation(experiment: str | None = None, **options: Any) -> Iterator[Rounds]:
    """A federation to go through round by round, without a folder; the options that describe it are those of `run`."""
    config = configure(experiment, **options)
    threads = torch.get_num_threads()
    with world(Path("runs") / ".federation"):
        torch.set_num_threads(config.federation.threads)
        exchange = Exchange.connect(own_device(config.federation.deterministic), config.federation.timeout)
        try:
            task = make_task(config, exchange.device)
            privacy = make_privacy(config, task, exchange)
            made = make_federation(config, task, exchange, privacy=privacy)
            yield Rounds(config, made, made.method.init_server(made.task), privacy=privacy)
        finally:
            exchange.close()
            torch.set_num_threads(threads)
