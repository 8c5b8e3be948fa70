"""The rounds of a run, each with its evaluation, its record and perhaps a checkpoint, and what follows the last."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor

from fedddp.config.loading import Config
from fedddp.core import files
from fedddp.core.files import damaged
from fedddp.evaluation.calibrate import FILE as CALIBRATION
from fedddp.evaluation.calibrate import Calibration
from fedddp.evaluation.confusion import confusion
from fedddp.evaluation.evaluate import Evaluated, Evaluator
from fedddp.evaluation.histograms import histograms
from fedddp.records.records import Recorder, round_record
from fedddp.records.table import Table
from fedddp.rounds.federate import Federation
from fedddp.rounds.report import Report
from fedddp.runs.checkpoints import Checkpoints
from fedddp.runs.clients import called, split
from fedddp.runs.ending import finish
from fedddp.runs.pace import Pace
from fedddp.runs.private import Ledger
from fedddp.runs.stop import Stop

DIVERGING = 50.0  # nats an example: no model that learns is as wrong
MOST_DRAWN = 1000  # clients in a picture of the split


@dataclass
class Rounds:
    """What the rounds of one run need, on every rank."""

    config: Config
    folder: Path
    evaluator: Evaluator
    checkpoints: Checkpoints
    stop: Stop
    say: Callable[[str], None]  # which rank 0 alone does
    recorder: Recorder | None = None  # on rank 0
    calibration: Calibration | None = None
    ledger: Ledger | None = None  # of a private run: what it has spent
    after_round: Callable[[int], None] | None = None  # for tests that interrupt a run
    warned: bool = False
    pace: Pace = field(init=False)

    def __post_init__(self) -> None:
        self.pace = Pace(self.config.checkpoint.every, self.config.checkpoint.share)

    @property
    def federation(self) -> Federation:
        return self.evaluator.federation

    @property
    def last(self) -> int:
        return self.federation.task.rounds

    def run(self, server: Any, done: int) -> dict[str, Any] | None:
        """From after round `done` to the summary; None if the run was asked to stop before its end."""
        for number in range(done, self.last):
            if not self._spend(number):
                return self._finish(server, number)
            start = time.perf_counter()
            server, report = self.federation.round(server, number, lambda: (self.pace.due(), self.stop.asked))
            self._record(server, number + 1, report, start)
            if self.after_round is not None:
                self.after_round(number + 1)
            self.pace.round_took(time.perf_counter() - start)
            if number + 1 < self.last:
                self._save(server, number + 1, report)
                if report.stop:
                    self.say(f"stopped after round {number + 1} of {self.last}; go on with --resume")
                    return None
        self._at_end(server, done)
        return self._finish(server, self.last)

    def _spend(self, number: int) -> bool:
        """Whether a private run can afford this round, which is then counted before anything of it is told."""
        if self.ledger is None:
            return True
        if self.ledger.affords(number):
            self.ledger.start(number)
            return True
        self.say(
            f"stopped after round {number}: epsilon is {self.ledger.epsilon:.3f}, and one round more would "
            f"spend more than privacy.epsilon={self.config.privacy.epsilon}"
        )
        return False

    def _record(self, server: Any, finished: int, report: Report, start: float) -> None:
        metrics, table = self._evaluate(server, finished, report)
        if self.ledger is not None:
            metrics["epsilon"] = self.ledger.epsilon
        self._warn(finished, metrics.get("nll", 0.0))
        if finished % self.config.federation.check_every == 0 or finished == self.last:
            self.federation.check_equal(server, finished)
        if self.recorder is not None:
            record = round_record(finished, report, metrics, time.perf_counter() - start)
            every = self.config.evaluation.histograms
            wanted = bool(every) and (finished % every == 0 or finished in (1, self.last))
            self.recorder.round(record, self._histograms(report, server, table) if wanted else {}, table)

    def _evaluate(self, server: Any, finished: int, report: Report) -> Evaluated:
        if not self.config.evaluation.wanted(finished, self.last):
            return Evaluated({}, None)
        start = time.perf_counter()
        found = self.evaluator(server, finished, report)
        return found._replace(metrics=found.metrics | {"seconds_evaluate": time.perf_counter() - start})

    def _warn(self, finished: int, nll: float) -> None:
        """Once: a loss so large is no longer learning, though every number is still finite."""
        if nll > DIVERGING and not self.warned:
            self.warned = True
            self.say(f"round {finished}: nll is {nll:.0f}: the run diverges (a smaller local.lr may help)")

    def _histograms(self, report: Report, server: Any, table: Table | None) -> dict[str, Tensor]:
        method = self.federation.method
        spread = {f"clients/{name}": values for name, values in table.columns.items()} if table else {}
        return spread | histograms(report, method.posterior(server), method.duals(self.federation.store.memory))

    def _save(self, server: Any, finished: int, report: Report) -> None:
        """A checkpoint, if it is time for one or the run stops."""
        due = report.checkpoint or (self.pace.every > 0 and finished % self.pace.every == 0)
        if due or report.stop:
            with self.pace.saving():
                if self.recorder is not None:
                    self.recorder.sync()
                self.checkpoints.save(finished, server, self.federation)

    def _at_end(self, server: Any, done: int) -> None:
        """What is told of the final model alone: pictures, and how far its answers can be trusted."""
        if done < self.last or self._lost("pictures.json"):
            self._pictures(server, draw=self.config.evaluation.histograms > 0 and done < self.last)
        if self.calibration is not None and (done < self.last or self._lost(CALIBRATION)):
            learned = self.calibration(server, self.last)
            if self.recorder is not None:
                files.write_record(self.folder / CALIBRATION, learned)

    def _lost(self, name: str) -> bool:
        """Whether a finished run's record must be made again, by all ranks."""
        wrong = damaged(self.folder / name) if self.recorder is not None else ""
        if wrong:
            self.say(f"{wrong}; it is made anew")
        return self.checkpoints.exchange.agree([int(bool(wrong))]) == [1]

    def _pictures(self, server: Any, draw: bool) -> None:
        """Who has what, and how sure the final model is: for TensorBoard and for reports."""
        task = self.federation.task
        numbers: dict[str, Any]
        numbers, spread = self.evaluator.pictures(server, task.rounds)
        numbers |= confusion(self.evaluator, server)
        if self.recorder is not None:
            if 1 < task.num_clients <= MOST_DRAWN:
                numbers["split"] = split(task, called(self.config, task))
            self.recorder.pictures(numbers, spread, draw)
            if draw:
                self.recorder.clients(task.everyone.num_examples.tolist())

    def _finish(self, server: Any, rounds: int) -> dict[str, Any]:
        return finish(self.checkpoints, self.folder, self.evaluator, server, rounds, self.ledger, self.say)
