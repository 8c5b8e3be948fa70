"""A run from configuration to summary: claim the folder, build, resume, open the records, and do the rounds."""

import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from fedddp.config.loading import Config
from fedddp.core import files, rng
from fedddp.core.device import sharing
from fedddp.core.files import damaged
from fedddp.core.task import Task
from fedddp.core.trace import whole
from fedddp.evaluation.evaluators import make_calibration, make_evaluator
from fedddp.exchange.group import Exchange
from fedddp.records.records import Recorder
from fedddp.records.texts import texts
from fedddp.records.trackers import About
from fedddp.rounds import checkpoint
from fedddp.rounds.failures import Failed
from fedddp.runs import footprint, lock
from fedddp.runs.build import make_federation, make_task, measure_width
from fedddp.runs.checkpoints import Checkpoints
from fedddp.runs.claim import claim, write_config
from fedddp.runs.clients import called, clients
from fedddp.runs.private import Ledger, Privacy, make_privacy
from fedddp.runs.rank import speaks
from fedddp.runs.rounds import Rounds
from fedddp.runs.stop import Stop


@dataclass
class Job:
    """One run of one configuration in one folder."""

    config: Config
    folder: Path
    exchange: Exchange
    device: torch.device
    quiet: bool = False
    stop: Stop = field(default_factory=Stop)
    after_round: Callable[[int], None] | None = None  # for tests that interrupt a run
    recorder: Recorder | None = None  # on rank 0, once there are records

    def run(self, resume: bool) -> dict[str, Any] | None:
        """The summary; None if the run was asked to stop before its end."""
        with ExitStack() as held:
            self._claim(resume, held)
            try:
                return self._run()
            except Exception as error:
                self._keep_trace(error)
                raise

    def _claim(self, resume: bool, held: ExitStack) -> None:
        """The folder is new, or holds a run of this very configuration that we were asked to go on with."""
        failure = ""
        if self.exchange.rank == 0:
            try:
                held.enter_context(lock.hold(self.folder))
                claim(self.folder, self.config, resume, self._say)
            except (ValueError, OSError, lock.Busy) as error:
                failure = str(error)
        self.exchange.together(failure)

    def _run(self) -> dict[str, Any] | None:
        task = make_task(self.config, self.device)
        self._same_everywhere(task)
        checkpoints = Checkpoints(self.folder / "checkpoints", self.config, self.exchange, self._say)
        told = checkpoints.open()
        self._settle_width(task, told.get("width", 0))
        place = footprint.place(self.config, self.device, self.exchange.world_size, sharing())
        privacy = make_privacy(self.config, task, self.exchange)
        federation = make_federation(self.config, task, self.exchange, told.get("cost", ()), place, privacy)
        evaluator = make_evaluator(self.config, federation)
        rounds = Rounds(self.config, self.folder, evaluator, checkpoints, self.stop, self._say)
        rounds.calibration, rounds.after_round = make_calibration(self.config, evaluator), self.after_round
        server, done = checkpoints.restore(federation, told)
        if privacy is not None:
            rounds.ledger = Ledger.open(privacy, self.folder, self.exchange, done)
        self.recorder = rounds.recorder = self._open(task, done) if self.exchange.rank == 0 else None
        self._announce(task, privacy, done)
        try:
            ended = rounds.run(server, done)
        except BaseException:
            self._close(failed=True)
            raise
        self._close()
        return ended

    def _same_everywhere(self, task: Task) -> None:
        """All ranks run the same build on the same kind of processor with the same data."""
        facts = {"data split": task.shards.digest(), **checkpoint.fingerprint(), "config": self.config.hash}
        for name, value in facts.items():
            number = rng.key(value)
            high, low = self.exchange.agree([number, -number])
            if high != -low:
                raise ValueError(
                    f"ranks differ in {name} (here: {value}); results would depend on placement. "
                    "Run all ranks with the same torch on the same kind of processor and the same files"
                )

    def _settle_width(self, task: Task, before: int) -> None:
        """cohort_width=auto: measured once, by rank 0, and kept in config.yaml for every later resume.

        `before`: what the checkpoint was made with, which alone gives the same bits.
        """
        settings = self.config.federation
        if settings.cohort_width != "auto":
            return
        settings.measured_width = before or settings.measured_width
        if self.exchange.rank == 0 and not settings.measured_width:
            settings.measured_width = measure_width(self.config, task)
        settings.measured_width = self.exchange.agree([settings.measured_width if self.exchange.rank == 0 else 0])[0]
        self.config.values["federation"]["measured_width"] = settings.measured_width
        if self.exchange.rank == 0:
            write_config(self.folder, self.config.values)

    def _open(self, task: Task, done: int) -> Recorder:
        """The records, cut back to where the run goes on; what of them is damaged and can be made again, is."""
        recorder = Recorder(self.folder, task.rounds, done, self.config.title("method"), self.quiet)
        path = self.folder / "clients.json"
        wrong = damaged(path)
        if wrong or not done:
            if done:
                recorder.say(f"{wrong}; it is written anew")
            who = clients(task, called(self.config, task))
            files.write_record(path, who)
        if not done:
            recorder.begin(self.config.told_apart, texts(self.config.values, who))
        if done < task.rounds:  # what it says of the end is not so any more
            (self.folder / "summary.json").unlink(missing_ok=True)
            about = About(self.config.run_name, self.folder, self.config.relevant, done)
            recorder.trackers.begin(self.config.evaluation.trackers, about)
        elif wrong := damaged(self.folder / "summary.json"):
            recorder.say(f"{wrong}; it is made from the checkpoint and metrics.jsonl")
        return recorder

    def _announce(self, task: Task, privacy: Privacy | None, done: int) -> None:
        settings = self.config.federation
        if settings.precision != settings.dtype:
            self._say(f"precision: {settings.precision}; results differ from those of {settings.dtype} alone")
        if privacy is not None and privacy.secret:
            self._say("privacy.randomness=system: the noise is not the seed's, and no bits will repeat")
        if done:
            self._say(f"{self.folder}: goes on after round {done} of {task.rounds}")

    def _close(self, failed: bool = False) -> None:
        if self.recorder is not None:
            self.recorder.close(failed)
            self.recorder = None

    def _keep_trace(self, error: Exception) -> None:
        """The failing rank's whole trace, in the run's folder, by a rank that has it."""
        if speaks(error) and self.folder.is_dir():
            trace = error.trace if isinstance(error, Failed) else ""
            with suppress(OSError):  # a full disk: its own line is what must be seen
                files.write_text(self.folder / "traceback.txt", trace or whole(error))

    def _say(self, text: str) -> None:
        """By rank 0, around the bar where there is one."""
        if self.recorder is not None:
            self.recorder.say(text)
        elif self.exchange.rank == 0 and not self.quiet:
            print(text, file=sys.stderr, flush=True)
