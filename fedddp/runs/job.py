"""A run from configuration to summary: build, resume, rounds, evaluation, records, checkpoints."""

import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from math import isnan
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import Tensor

from fedddp.core import rng, tree
from fedddp.core.data import Source
from fedddp.core.files import write_json, write_text
from fedddp.core.task import Task
from fedddp.core.trace import whole
from fedddp.data._settings import Subset
from fedddp.exchange.group import Exchange
from fedddp.rounds import checkpoint
from fedddp.rounds.federate import Failed, Federation, Report, checksum
from fedddp.rounds.solver import Nothing
from fedddp.rounds.store import ClientStore
from fedddp.runs import lock
from fedddp.runs.build import make_federation, make_task, measure_width
from fedddp.runs.config import Config, read
from fedddp.runs.evaluate import Evaluator, other_data
from fedddp.runs.histograms import histograms
from fedddp.runs.posterior import export
from fedddp.runs.rank import speaks
from fedddp.runs.records import Recorder, last_three, read_metrics
from fedddp.runs.schema import flatten, relevant

MOST_DRAWN = 1000  # clients in a picture of the split
MOST_COUNTED = 10_000  # clients whose classes are counted in clients.json
PLAIN = ("accuracy", "nll", "ece", "brier", "rmse", "ood_auroc")
TEXT = ("macro_f1", "micro_f1", "precision", "recall_at_5", "perplexity")
METRICS = (*PLAIN, *TEXT, *(f"averaged_{name}" for name in PLAIN))  # averaged: over a posterior, where there is one


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
            write_text(self.folder / "traceback.txt", trace or whole(error))

    def _run(self) -> dict[str, Any] | None:
        lead = self.exchange.rank == 0
        task = make_task(self.config, self.device)
        self._same_everywhere(task)
        self._settle_width(task)
        found = self._newest()
        measured = checkpoint.about(found).get("cost", ()) if found else ()
        federation = make_federation(self.config, task, self.exchange, measured)
        ood = other_data(self.config.evaluation.ood, task, _root(self.config.data))
        evaluator = Evaluator(federation, self.config.evaluation.samples, ood)
        server, done = self._restore(federation, found)
        recorder = None
        if lead:
            recorder = Recorder(self.folder, task.rounds, done, self.config.title("method"), self.quiet)
            if not done:
                recorder.settings(self.config.relevant)
                names = self.config.values["split"].get("names", ())
                write_json(self.folder / "clients.json", _clients(task, names))
        if done:
            self._say(recorder, f"{self.folder}: goes on after round {done} of {task.rounds}")
        try:
            return self._rounds(evaluator, server, done, recorder)
        finally:
            if recorder is not None:
                recorder.close()

    def _rounds(self, evaluator: Evaluator, server: Any, done: int, recorder: Recorder | None) -> dict[str, Any] | None:
        federation, pace = evaluator.federation, Pace(self.config.checkpoint.every, self.config.checkpoint.share)
        rounds = federation.task.rounds
        for number in range(done, rounds):
            start = time.perf_counter()
            server, report = federation.round(server, number, lambda: (pace.due(), self.stop.asked))
            finished = number + 1
            metrics = self._evaluate(evaluator, server, finished)
            if finished % self.config.federation.check_every == 0 or finished == rounds:
                federation.check_equal(server, finished)
            if recorder is not None:
                record = _record(finished, report, metrics, time.perf_counter() - start)
                every = self.config.evaluation.histograms
                wanted = bool(every) and (finished % every == 0 or finished in (1, rounds))
                recorder.round(record, self._histograms(federation, report, server) if wanted else {})
            if self.after_round is not None:
                self.after_round(finished)
            pace.round_took(time.perf_counter() - start)
            wanted = report.checkpoint or (pace.every > 0 and finished % pace.every == 0)
            if (wanted or report.stop) and finished < rounds:
                with pace.saving():
                    self._save(finished, server, federation, federation.store)
            if report.stop and finished < rounds:
                self._say(recorder, f"stopped after round {finished} of {rounds}; go on with --resume")
                return None
        if done < rounds:
            self._pictures(evaluator, server, recorder)
        return self._finish(evaluator, server)

    def _histograms(self, federation: Federation, report: Report, server: Any) -> dict[str, Tensor]:
        method = federation.method
        return histograms(report, method.posterior(server), method.duals(federation.store.memory))

    def _save(self, finished: int, server: Any, federation: Federation, store: ClientStore) -> None:
        about = {"cost": federation.plan.cost.constants}
        checkpoint.save(self.folder / "checkpoints", finished, server, store, self.exchange, about)

    def _evaluate(self, evaluator: Evaluator, server: Any, finished: int) -> dict[str, float]:
        if finished % self.config.evaluation.every and finished != evaluator.federation.task.rounds:
            return {}
        start = time.perf_counter()
        return evaluator(server, finished) | {"seconds_evaluate": time.perf_counter() - start}

    def _pictures(self, evaluator: Evaluator, server: Any, recorder: Recorder | None) -> None:
        """Who has what, and how sure the final model is: for TensorBoard and for reports."""
        task = evaluator.federation.task
        numbers: dict[str, Any]
        numbers, spread = evaluator.pictures(server, task.rounds)
        if recorder is not None:
            if 1 < task.num_clients <= MOST_DRAWN:
                numbers["split"] = _split(task)
            recorder.pictures(numbers, spread, draw=self.config.evaluation.histograms > 0)

    def _claim(self, resume: bool, held: ExitStack) -> None:
        """The folder is new, or holds a run of this very configuration that we were asked to go on with."""
        failure = ""
        if self.exchange.rank == 0:
            try:
                held.enter_context(lock.hold(self.folder))
                self._claim_folder(resume)
            except (ValueError, OSError, lock.Busy) as error:
                failure = str(error)
        self.exchange.together(failure)

    def _claim_folder(self, resume: bool) -> None:
        path = self.folder / "config.yaml"
        if path.exists():
            theirs = read(path)
            mine, other = dict(flatten(self.config.values)), dict(flatten(theirs))
            if relevant(theirs) != self.config.relevant:
                keys = [k for k in sorted({*mine, *other}) if mine.get(k) != other.get(k)]
                changed = ", ".join(f"{k}={other.get(k)} (now {mine.get(k)})" for k in keys[:4])
                raise ValueError(f"{self.folder} holds a run of another configuration: {changed}; choose another --out")
            if not resume:
                raise ValueError(
                    f"{self.folder} holds this run already: add --resume to go on, or choose another --out"
                )
            measured = theirs["federation"]["measured_width"]
            self.config.federation.measured_width = measured
            self.config.values["federation"]["measured_width"] = measured
        self.folder.mkdir(parents=True, exist_ok=True)
        self.config.kept.copy(self.folder)
        self._write_config()

    def _write_config(self) -> None:
        write_text(self.folder / "config.yaml", OmegaConf.to_yaml(OmegaConf.create(self.config.values)))

    def _settle_width(self, task: Task) -> None:
        """cohort_width=auto: measured once, by rank 0, and kept in config.yaml for every later resume."""
        settings = self.config.federation
        if settings.cohort_width != "auto":
            return
        if self.exchange.rank == 0 and not settings.measured_width:
            settings.measured_width = measure_width(self.config, task)
        settings.measured_width = self.exchange.agree([settings.measured_width if self.exchange.rank == 0 else 0])[0]
        self.config.values["federation"]["measured_width"] = settings.measured_width
        if self.exchange.rank == 0:
            self._write_config()

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
        choice = ""
        if self.exchange.rank == 0:
            found = checkpoint.newest(self.folder / "checkpoints", lambda text: self._say(None, text))
            choice = found.name if found else ""
        choice = self.exchange.tell(choice, 0)
        return self.folder / "checkpoints" / choice if choice else None

    def _restore(self, federation: Federation, path: Path | None) -> tuple[Any, int]:
        """The checkpoint's state, or the start."""
        server = federation.method.init_server(federation.task)
        if path is None:
            return server, 0
        written = checkpoint.about(path)
        for key, value in checkpoint.fingerprint().items():
            if written.get(key, "none") != value:
                self._say(
                    None,
                    f"checkpoint was written with {key} {written.get(key, 'none')}, this is {value}: bits may differ",
                )
        finished = written["round"] == federation.task.rounds  # its client rows may be gone, and are not needed
        return checkpoint.load(path, server, None if finished else federation.store)

    def _finish(self, evaluator: Evaluator, server: Any) -> dict[str, Any]:
        """The final state as plain tensors, the summary, and no client rows that nobody needs."""
        federation = evaluator.federation
        folder, rounds = self.folder / "checkpoints", federation.task.rounds
        if not (folder / f"round-{rounds:06d}").exists():
            keep = self.config.checkpoint.keep_clients
            store = federation.store if keep else ClientStore(torch.zeros(0, dtype=torch.long), Nothing())
            self._save(rounds, server, federation, store)
        summary = self._summary(federation, server)
        if self.exchange.rank == 0:
            if not self.config.checkpoint.keep_clients:
                for old in checkpoint.found(folder)[:-1]:
                    shutil.rmtree(old)
            checkpoint.save_tensors(self.folder / "server.safetensors", tree.leaves(server))
            lam = federation.method.posterior(server)
            export(self.folder / "posterior.safetensors", federation.task, evaluator.point(server), lam)
            write_json(self.folder / "summary.json", summary)
        self.exchange.barrier()
        return summary

    def _summary(self, federation: Federation, server: Any) -> dict[str, Any]:
        records = read_metrics(self.folder / "metrics.jsonl") if self.exchange.rank == 0 else []
        last: dict[str, Any] = records[-1] if records else {}
        return {
            "method": self.config.title("method"),
            "rounds": federation.task.rounds,
            **{name: last[name] for name in METRICS if name in last},
            "last_3_rounds": last_three(records, METRICS),
            "seconds": sum(r["seconds"] for r in records),
            "bytes": sum(r["bytes"] for r in records),
            **_communication(records),
            "world_size": self.exchange.world_size,
            "clients": federation.task.num_clients,
            "parameters": federation.task.layout.numel,
            "cohort_width": federation.plan.width,
            "checksum": checksum(server),
            "config_hash": self.config.hash,
            "split_hash": federation.task.shards.digest(),
            **checkpoint.fingerprint(),
        }

    def _say(self, recorder: Recorder | None, text: str) -> None:
        if recorder is not None:
            recorder.say(text)
        elif self.exchange.rank == 0 and not self.quiet:
            print(text, file=sys.stderr, flush=True)


@dataclass
class Pace:
    """How often to write a checkpoint: every so many rounds, or as often as costs a given share of the time."""

    every: int
    share: float
    worked: float = 0.0  # seconds since the last checkpoint
    cost: float = 1.0  # seconds that a checkpoint takes; a guess until one was written

    def due(self) -> bool:
        return self.every == 0 and self.worked * self.share > self.cost

    def round_took(self, seconds: float) -> None:
        self.worked += seconds

    @contextmanager
    def saving(self) -> Iterator[None]:
        start = time.perf_counter()
        yield
        self.cost, self.worked = time.perf_counter() - start, 0.0


def _record(finished: int, report: Report, metrics: dict[str, float], seconds: float) -> dict[str, Any]:
    return {
        "round": finished,
        **metrics,
        "train_loss": None if isnan(report.train_loss) else report.train_loss,
        "seconds": seconds,
        **{f"seconds_{part}": value for part, value in report.seconds.items()},
        "seconds_idle": report.idle,
        "seconds_idle_mean": sum(report.idle) / len(report.idle),
        "seconds_idle_max": max(report.idle),
        "bytes": report.bytes,
        "bytes_up": report.bytes_up,
        "bytes_down": report.bytes_down,
        "active": report.active,
        "skipped": report.skipped,
        **report.metrics,
    }


def _communication(records: list[dict[str, Any]]) -> dict[str, float]:
    """Bytes per client and round, up and down, in the mean over rounds; and all that clients sent and were sent."""
    up, down = ([r[f"bytes_{way}"] for r in records] for way in ("up", "down"))
    rounds = max(len(records), 1)
    everything = sum(r["active"] * (r["bytes_up"] + r["bytes_down"]) for r in records)
    return {"bytes_up": sum(up) / rounds, "bytes_down": sum(down) / rounds, "bytes_clients": everything}


def _split(task: Task) -> dict[str, Any]:
    """Who has how many examples of which class."""
    counts = task.shards.count(task.data.train.targets.cpu(), task.data.classes)
    sizes = task.shards.num_examples.tolist()
    return {"counts": counts.tolist(), "sizes": sizes, "names": list(task.data.label_names)}


def _clients(task: Task, names: Sequence[str]) -> dict[str, Any]:
    """Who takes part: names, examples and, of few enough clients, how many of each class."""
    few, classes = task.num_clients <= MOST_COUNTED, task.data.classes
    split = _split(task) if few and classes else {"counts": []}
    plain = [str(number) for number in range(classes)] if split["counts"] else []
    return {
        "names": list(names) if len(names) == task.num_clients else list(range(task.num_clients)),
        "examples": task.shards.num_examples.tolist(),
        "counts": split["counts"],
        "labels": list(task.data.label_names) if plain and task.data.label_names else plain,
    }


def _root(source: Source) -> str:
    """The folder of its files, where it has one: another data set's files are looked for there, too."""
    return source.root if isinstance(source, Subset) else ""
