"""All methods beside each other on three data sets: tuned alike, run, and written down as one page.

Each method has one thing to choose, the learning rate of its clients' solver: the usual one (configs/method) times
each of FACTORS, with the first seed; on Shakespeare ten times that, since small recurrent networks take larger steps.
The highest accuracy on the validation points at the server wins, of two alike the lower NLL; the test set has no say.
All seeds then run with that rate. What a method cannot do is kept as its reason. Every run is kept in a file as soon as
it is done, so the same call goes on after a stop.
"""

import json
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import torch

from fedddp.config import loading as configuration
from fedddp.config.loading import folder
from fedddp.config.written import read as read_yaml
from fedddp.core import registry
from fedddp.core.check import first_line
from fedddp.core.files import write_text
from fedddp.exchange.group import Exchange
from fedddp.records.records import read_metrics
from fedddp.runs.job import Job

TASKS = ("ranking_heart", "ranking_fashion", "ranking_shakespeare")  # experiments
FACTORS = (1.0, 0.3, 3.0)  # of the usual learning rate
LARGER = {"ranking_shakespeare": 10.0}  # times the usual learning rate, on every factor
SEEDS = (1, 2, 3)
MOST = 10.0  # seconds
HOPELESS = ("cannot", "takes more than")  # how reasons begin that no learning rate changes
METRICS = ("accuracy", "nll", "ece")


@dataclass(frozen=True)
class Entry:
    """One run: what it found, or why there is nothing."""

    task: str
    method: str
    seed: int
    factor: float  # of the usual learning rate
    metrics: dict[str, float] = field(default_factory=dict)
    reason: str = ""
    date: str = ""  # on which it was run


@dataclass(frozen=True)
class Table:
    """Rows that are run on every task, each tuned there by itself."""

    tasks: Sequence[str]  # experiments
    rows: Sequence[str]
    words: Callable[[str, str, int, float], list[str]]  # of task, row, seed and factor: settings of one run
    factors: Sequence[float] = FACTORS  # of the usual learning rate, that are tried
    most: float = MOST  # seconds of one core that a run may take
    only: Mapping[str, Sequence[str]] = field(default_factory=dict)  # tasks of the rows that are not for all
    last: int = 3  # rounds whose mean is told, the last ones


def file(name: str = "ranking") -> Path:
    return folder("reproduce") / f"{name}.json"


def read(path: Path) -> list[Entry]:
    plain: list[dict[str, Any]] = json.loads(path.read_text()) if path.is_file() else []
    return [Entry(**entry) for entry in plain]


def write(path: Path, entries: Sequence[Entry]) -> None:
    rows = ",\n".join(json.dumps(asdict(entry), ensure_ascii=False) for entry in entries)
    write_text(path, f"[\n{rows}\n]\n")


def methods(chosen: Sequence[str] = ()) -> Table:
    """The ranking's own: all methods, or these."""
    return Table(TASKS, chosen or registry.builtin("method"), words)


def run(out: Path, path: Path, seeds: Sequence[int], table: Table) -> Iterator[Entry]:
    """Everything that is missing, in this process, on the CPU; seed by seed, and each entry as soon as it is there."""
    entries = read(path)
    exchange = Exchange.connect(torch.device("cpu"))
    try:
        for seed, _, task, row in _turns(seeds, table):
            factor = next(_missing(entries, task, row, seed, table.factors), None)
            if factor is not None:
                found = _one(table, task, row, seed, factor, out, exchange)
                entries.append(replace(found, date=f"{datetime.now(UTC):%Y-%m-%d}"))
                write(path, entries)
                yield entries[-1]
    finally:
        exchange.close()


def _turns(seeds: Sequence[int], table: Table) -> Iterator[tuple[int, int, str, str]]:
    """(seed, turn, task, row): with the first seed a learning rate in each turn, so that all soon have one."""
    for seed in seeds:
        turns = range(len(table.factors) if seed == SEEDS[0] else 1)
        for turn, task, row in product(turns, table.tasks, table.rows):
            if task in table.only.get(row, table.tasks):
                yield seed, turn, task, row


def _missing(
    entries: Sequence[Entry], task: str, method: str, seed: int, factors: Sequence[float] = FACTORS
) -> Iterator[float]:
    """The factors that are left to run: all with the first seed, then the chosen one."""
    own = [e for e in entries if (e.task, e.method) == (task, method)]
    done = {e.factor for e in own if e.seed == seed}
    if seed == SEEDS[0]:
        for factor in factors:
            if factor in done:
                continue
            if any(e.reason.startswith(HOPELESS) for e in own):
                return  # with no learning rate, then
            yield factor
        return
    best = chosen(own)
    if best is not None and best not in done:
        yield best


def chosen(own: Sequence[Entry]) -> float | None:
    """The factor that the validation points like best, of one method's entries of one task."""
    tried = [e for e in own if e.seed == SEEDS[0] and e.metrics]
    if not tried:
        return None
    best = max(tried, key=lambda e: (e.metrics["validation_accuracy"], -e.metrics["validation_nll"]))
    return best.factor


def words(task: str, method: str, seed: int, factor: float) -> list[str]:
    """The settings of one run as on the command line."""
    usual = _usual(task, method)
    rate = [] if usual is None else [f"local.lr={factor * usual * LARGER.get(task, 1.0):g}"]
    return [f"method={method}", f"seed={seed}", *rate]


def _usual(task: str, method: str) -> float | None:
    """The learning rate that the method's file names, or else its solver's own."""
    solver = read_yaml(folder("method") / f"{method}.yaml").get("local", {})
    if "lr" in solver:
        return float(solver["lr"])
    rate = getattr(registry.find("local", solver.get("name", "sgd")), "lr", None)
    return None if rate is None else float(rate)


def _one(table: Table, task: str, method: str, seed: int, factor: float, out: Path, exchange: Exchange) -> Entry:
    began = time.process_time()
    try:
        config = configuration.load(task, table.words(task, method, seed, factor))
    except ValueError as error:
        return Entry(task, method, seed, factor, reason=f"cannot: {first_line(error)}")
    place = out / task / f"{method}-{seed}-{factor:g}"
    shutil.rmtree(place, ignore_errors=True)  # of a call that was stopped
    job = Job(config, place, exchange, torch.device("cpu"), quiet=True)
    try:
        with limited(table.most):
            summary = job.run(resume=False)
    except TooLong as error:
        reason = f"{error}: {_rounds_done(place)} of {config.federation.rounds} rounds were done by then"
        return Entry(task, method, seed, factor, reason=reason)
    except (ValueError, RuntimeError, MemoryError) as error:
        kind = "" if _rounds_done(place) else "cannot: "  # what fails later is a matter of its settings
        return Entry(task, method, seed, factor, reason=kind + first_line(error))
    seconds = time.process_time() - began
    assert summary is not None, "nobody stops it"
    return Entry(task, method, seed, factor, metrics=_numbers(place, summary["bytes_clients"], seconds, table.last))


def _rounds_done(place: Path) -> int:
    records = place / "metrics.jsonl"
    return len(records.read_text().splitlines()) if records.is_file() else 0


class TooLong(BaseException):
    """A run has used up its seconds: as with KeyboardInterrupt, no client of it is to blame."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """TooLong once the process has computed for so long, also amidst the only round of a one-shot method."""

    def over(*_: object) -> None:
        raise TooLong(f"takes more than {seconds:.0f} s")

    before = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _numbers(place: Path, clients: float, seconds: float, last: int) -> dict[str, float]:
    """Means of the last rounds, over samples of the posterior where there is one."""
    records = [record for record in read_metrics(place / "metrics.jsonl") if "accuracy" in record][-last:]
    prefix = "averaged_" if "averaged_accuracy" in records[-1] else ""
    names = {name: f"{prefix}{name}" for name in METRICS}
    names |= {f"validation_{name}": f"validation_{prefix}{name}" for name in METRICS[:2]}
    shares = {"own_part": f"clients_{prefix}accuracy_mean", "worst_tenth": f"clients_{prefix}accuracy_worst_tenth"}
    names |= {ours: name for ours, name in shares.items() if name in records[-1]}
    if "ood_entropy" in records[-1]:
        names |= {name: f"{prefix}{name}" for name in ("entropy", "ood_entropy")}
    found = {ours: sum(record[name] for record in records) / len(records) for ours, name in names.items()}
    found |= {"megabytes": clients / 1e6, "seconds": seconds}
    return {name: round(value, 5) for name, value in found.items()}
