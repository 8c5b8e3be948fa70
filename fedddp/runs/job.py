"""A run from configuration to summary: build, resume, rounds, evaluation, records, checkpoints."""

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from fedddp.core import files, rng, tree
from fedddp.core.device import sharing
from fedddp.core.files import damaged
from fedddp.core.task import Task
from fedddp.core.trace import whole
from fedddp.exchange.group import Exchange
from fedddp.rounds import checkpoint
from fedddp.rounds.federate import Failed, Federation, Report, checksum
from fedddp.rounds.solver import Nothing
from fedddp.rounds.store import ClientStore
from fedddp.runs import footprint, lock, summary
from fedddp.runs.build import make_federation, make_task, measure_width
from fedddp.runs.calibrate import FILE as CALIBRATION
from fedddp.runs.calibrate import Calibration
from fedddp.runs.claim import claim, origin, write_config
from fedddp.runs.clients import called, clients, split
from fedddp.runs.config import Config
from fedddp.runs.confusion import confusion
from fedddp.runs.evaluate import Evaluated, Evaluator
from fedddp.runs.evaluators import make_calibration, make_evaluator
from fedddp.runs.histograms import histograms
from fedddp.runs.pace import Pace
from fedddp.runs.posterior import export
from fedddp.runs.private import Ledger, make_privacy
from fedddp.runs.rank import speaks
from fedddp.runs.records import Recorder, round_record
from fedddp.runs.table import Table
from fedddp.runs.texts import texts
from fedddp.runs.trackers import About

DIVERGING = 50.0  # nats an example: no model that learns is as wrong
MOST_DRAWN = 1000  # clients in a picture of the split


@dataclass
class Stop:
    """Set by Ctrl-C, SIGTERM or a scheduler's warning; read between rounds. The handler itself does nothing else."""

    asked: bool = False
    signals: list[int] = field(default_factory=list)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """For the length of a run; in a thread beside the main one there is nothing to listen to."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR2)
        before = {number: signal.signal(number, self._note) for number in numbers}
        signal.pthread_sigmask(signal.SIG_UNBLOCK, numbers)  # a launcher may have held them back until now
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, _: FrameType | None) -> None:
        if self.asked and number == signal.SIGINT:  # a second Ctrl-C does not wait for the round
            raise KeyboardInterrupt
        self.asked = True
        self.signals.append(number)


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
    last: Path | None = None  # the whole checkpoint that was read or written last
    warned: bool = False
    ledger: Ledger | None = None  # of a private run: what it has spent

    def run(self, resume: bool) -> dict[str, Any] | None:
        """The summary; None if the run was asked to stop before its end."""
        with ExitStack() as held:
            self._claim(resume, held)
            try:
                return self._run()
            except Exception as error:
                self._keep_trace(error)
                raise

    def _keep_trace(self, error: Exception) -> None:
        """The failing rank's whole trace, in the run's folder, by a rank that has it."""
        if speaks(error) and self.folder.is_dir():
            trace = error.trace if isinstance(error, Failed) else ""
            with suppress(OSError):  # a full disk: its own line is what must be seen
                files.write_text(self.folder / "traceback.txt", trace or whole(error))

    def _run(self) -> dict[str, Any] | None:
        task = make_task(self.config, self.device)
        self._same_everywhere(task)
        self.last = self._newest()
        told = self._told(self.last)
        self._settle_width(task, told.get("width", 0))
        place = footprint.place(self.config, self.device, self.exchange.world_size, sharing())
        privacy = make_privacy(self.config, task, self.exchange)
        federation = make_federation(self.config, task, self.exchange, told.get("cost", ()), place, privacy)
        evaluator = make_evaluator(self.config, federation)
        calibration = make_calibration(self.config, evaluator)
        server, done = self._restore(federation, self.last, told)
        self.ledger = Ledger.open(privacy, self.folder, self.exchange, done) if privacy is not None else None
        recorder = self._open(task, done) if self.exchange.rank == 0 else None
        settings = self.config.federation
        if settings.precision != settings.dtype:
            self._say(recorder, f"precision: {settings.precision}; results differ from those of {settings.dtype} alone")
        if privacy is not None and privacy.secret:
            self._say(recorder, "privacy.randomness=system: the noise is not the seed's, and no bits will repeat")
        if done:
            self._say(recorder, f"{self.folder}: goes on after round {done} of {task.rounds}")
        try:
            ended = self._rounds(evaluator, server, done, recorder, calibration)
        except BaseException:
            if recorder is not None:
                recorder.close(failed=True)
            raise
        if recorder is not None:
            recorder.close()
        return ended

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

    def _rounds(
        self,
        evaluator: Evaluator,
        server: Any,
        done: int,
        recorder: Recorder | None,
        calibration: Calibration | None = None,
    ) -> dict[str, Any] | None:
        federation, pace = evaluator.federation, Pace(self.config.checkpoint.every, self.config.checkpoint.share)
        rounds = federation.task.rounds
        for number in range(done, rounds):
            if self.ledger is not None and not self.ledger.affords(number):
                spent, budget = self.ledger.epsilon, self.config.privacy.epsilon
                self._say(
                    recorder,
                    f"stopped after round {number}: epsilon is {spent:.3f}, and one round more would "
                    f"spend more than privacy.epsilon={budget}",
                )
                return self._finish(evaluator, server, number)
            start = time.perf_counter()
            if self.ledger is not None:
                self.ledger.start(number)
            server, report = federation.round(server, number, lambda: (pace.due(), self.stop.asked))
            finished = number + 1
            metrics, table = self._evaluate(evaluator, server, finished, report)
            if self.ledger is not None:
                metrics["epsilon"] = self.ledger.epsilon
            self._warn(recorder, finished, metrics.get("nll", 0.0))
            if finished % self.config.federation.check_every == 0 or finished == rounds:
                federation.check_equal(server, finished)
            if recorder is not None:
                record = round_record(finished, report, metrics, time.perf_counter() - start)
                every = self.config.evaluation.histograms
                wanted = bool(every) and (finished % every == 0 or finished in (1, rounds))
                recorder.round(record, self._histograms(federation, report, server, table) if wanted else {}, table)
            if self.after_round is not None:
                self.after_round(finished)
            pace.round_took(time.perf_counter() - start)
            wanted = report.checkpoint or (pace.every > 0 and finished % pace.every == 0)
            if (wanted or report.stop) and finished < rounds:
                with pace.saving():
                    if recorder is not None:
                        recorder.sync()
                    self._save(finished, server, federation, federation.store)
            if report.stop and finished < rounds:
                self._say(recorder, f"stopped after round {finished} of {rounds}; go on with --resume")
                return None
        if done < rounds or self._lost("pictures.json"):
            draw = self.config.evaluation.histograms > 0 and done < rounds
            self._pictures(evaluator, server, recorder, draw)
        if calibration is not None and (done < rounds or self._lost(CALIBRATION)):
            learned = calibration(server, rounds)
            if recorder is not None:
                files.write_record(self.folder / CALIBRATION, learned)
        return self._finish(evaluator, server, rounds)

    def _warn(self, recorder: Recorder | None, finished: int, nll: float) -> None:
        """Once: a loss so large is no longer learning, though every number is still finite."""
        if nll > DIVERGING and not self.warned:
            self.warned = True
            self._say(recorder, f"round {finished}: nll is {nll:.0f}: the run diverges (a smaller local.lr may help)")

    def _histograms(
        self, federation: Federation, report: Report, server: Any, table: Table | None
    ) -> dict[str, Tensor]:
        method = federation.method
        spread = {f"clients/{name}": values for name, values in table.columns.items()} if table else {}
        return spread | histograms(report, method.posterior(server), method.duals(federation.store.memory))

    def _save(self, finished: int, server: Any, federation: Federation, store: ClientStore) -> None:
        width = self.config.federation.measured_width
        dropped = store is not federation.store and not federation.store.empty
        about = {
            "cost": federation.plan.cost.constants,
            "width": width,
            "config": origin(self.config),
            "dropped": dropped,
        }
        folder = self.folder / "checkpoints"
        self.last = checkpoint.save(folder, finished, server, store, self.exchange, about, self.last)

    def _evaluate(self, evaluator: Evaluator, server: Any, finished: int, report: Report) -> Evaluated:
        if not self.config.evaluation.wanted(finished, evaluator.federation.task.rounds):
            return Evaluated({}, None)
        start = time.perf_counter()
        found = evaluator(server, finished, report)
        return found._replace(metrics=found.metrics | {"seconds_evaluate": time.perf_counter() - start})

    def _lost(self, name: str) -> bool:
        """Whether a finished run's record must be made again, by all ranks."""
        wrong = damaged(self.folder / name) if self.exchange.rank == 0 else ""
        if wrong:
            self._say(None, f"{wrong}; it is made anew")
        return self.exchange.agree([int(bool(wrong))]) == [1]

    def _pictures(self, evaluator: Evaluator, server: Any, recorder: Recorder | None, draw: bool) -> None:
        """Who has what, and how sure the final model is: for TensorBoard and for reports."""
        task = evaluator.federation.task
        numbers: dict[str, Any]
        numbers, spread = evaluator.pictures(server, task.rounds)
        numbers |= confusion(evaluator, server)
        if recorder is not None:
            if 1 < task.num_clients <= MOST_DRAWN:
                numbers["split"] = split(task, called(self.config, task))
            recorder.pictures(numbers, spread, draw)
            if draw:
                recorder.clients(task.everyone.num_examples.tolist())

    def _claim(self, resume: bool, held: ExitStack) -> None:
        """The folder is new, or holds a run of this very configuration that we were asked to go on with."""
        failure = ""
        if self.exchange.rank == 0:
            try:
                held.enter_context(lock.hold(self.folder))
                claim(self.folder, self.config, resume, lambda text: self._say(None, text))
            except (ValueError, OSError, lock.Busy) as error:
                failure = str(error)
        self.exchange.together(failure)

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

    def _newest(self) -> Path | None:
        """The newest whole checkpoint, chosen by rank 0 for all."""
        choice = failure = ""
        if self.exchange.rank == 0:
            try:
                checkpoint.tidy(self.folder / "checkpoints")
                found = checkpoint.newest(self.folder / "checkpoints", lambda text: self._say(None, text))
                choice = found.name if found else ""
            except (ValueError, OSError) as error:
                failure = str(error)
        self.exchange.together(failure)
        choice = self.exchange.tell(choice, 0)
        return self.folder / "checkpoints" / choice if choice else None

    def _told(self, path: Path | None) -> dict[str, Any]:
        """What a checkpoint says of itself, if it is of this run."""
        told = checkpoint.about(path) if path else {}
        if told and told.get("config") != origin(self.config):
            raise ValueError(
                f"{path}: belongs to a run of another configuration ({told.get('config')}, this is "
                f"{origin(self.config)}); give the settings that the run was started with, or choose another --out"
            )
        return told

    def _restore(self, federation: Federation, path: Path | None, written: dict[str, Any]) -> tuple[Any, int]:
        """The checkpoint's state, or the start."""
        server = federation.method.init_server(federation.task)
        if path is None:
            return server, 0
        for key, value in checkpoint.fingerprint().items():
            if written.get(key, "none") != value:
                self._say(
                    None,
                    f"checkpoint was written with {key} {written.get(key, 'none')}, this is {value}: bits may differ",
                )
        finished = written["round"] == federation.task.rounds  # its client rows may be gone, and are not needed
        return checkpoint.load(path, server, None if finished else federation.store)

    def _finish(self, evaluator: Evaluator, server: Any, rounds: int) -> dict[str, Any]:
        """The final state as plain tensors, the summary, and no client rows that nobody needs."""
        federation = evaluator.federation
        final = self.folder / "checkpoints" / f"round-{rounds:06d}"
        keep = self.config.checkpoint.keep_clients or rounds < federation.task.rounds
        if self.last != final:
            store = federation.store if keep else ClientStore(torch.zeros(0, dtype=torch.long), Nothing())
            self._save(rounds, server, federation, store)
        ended = self._summary(federation, server, rounds)
        with checkpoint.everywhere(self.exchange, "the results"):
            if self.exchange.rank == 0:
                if not keep:
                    checkpoint.keep_only(final.parent, {final})
                ended["files"] = self._export(evaluator, server)
                files.write_record(self.folder / "summary.json", ended)
        return ended

    def _export(self, evaluator: Evaluator, server: Any) -> dict[str, str]:
        """The final state for others to read; the digest of each file."""
        state, posterior = (self.folder / f"{name}.safetensors" for name in ("server", "posterior"))
        with files.whole(state) as temporary:
            checkpoint.save_tensors(temporary, tree.leaves(server))
        lam = evaluator.federation.method.posterior(server)
        with files.whole(posterior) as temporary:
            export(temporary, evaluator.federation.task, evaluator.point(server), lam)
        return {path.name: checkpoint.digest(path) for path in (state, posterior)}

    def _summary(self, federation: Federation, server: Any, rounds: int) -> dict[str, Any]:
        result = checksum(server)
        recorded = summary.told([])
        if self.exchange.rank == 0:
            recorded = summary.from_metrics(self.folder, rounds, result, lambda text: self._say(None, text))
        return {
            "method": self.config.title("method"),
            "rounds": rounds,
            **recorded,
            **(self.ledger.privacy.summary(self.ledger.rounds) if self.ledger is not None else {}),
            "world_size": self.exchange.world_size,
            "clients": federation.task.num_clients,
            "parameters": federation.task.layout.numel,
            "cohort_width": federation.plan.width,
            "precision": self.config.federation.precision,
            "checksum": result,
            "config_hash": self.config.hash,
            "split_hash": federation.task.shards.digest(),
            **checkpoint.fingerprint(),
        }

    def _say(self, recorder: Recorder | None, text: str) -> None:
        if recorder is not None:
            recorder.say(text)
        elif self.exchange.rank == 0 and not self.quiet:
            print(text, file=sys.stderr, flush=True)
