"""What `import fedddp` offers: runs, sweeps and reports from Python, in a script, a notebook, or on every rank.

    run = fedddp.run("digits", method="bayes_admm", seed=1, ranks=2)
    run = fedddp.run(model=net, clients={"rome": (x1, y1), "oslo": (x2, y2)}, test=(xt, yt), method=MyMethod())
    run.metrics, run.model, run.posterior, run.predict(x)

Under torchrun or srun every rank makes the same calls.
"""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn

from fedddp import reports
from fedddp.config import loading as configuration
from fedddp.config.given import GivenModel, given_clients, given_data
from fedddp.config.loading import Config
from fedddp.core.data import Source
from fedddp.core.device import own_device
from fedddp.core.files import damaged
from fedddp.core.model import Model
from fedddp.core.shards import Split
from fedddp.evaluation.evaluate import Evaluator
from fedddp.exchange.group import Exchange
from fedddp.jobs import here, rendezvous
from fedddp.jobs import sweep as sweeps
from fedddp.jobs.options import Options
from fedddp.jobs.planned import place, plan
from fedddp.rounds.federate import Federation
from fedddp.rounds.method import Method
from fedddp.rounds.report import Report
from fedddp.rounds.solver import Solver
from fedddp.runs import members
from fedddp.runs.build import make_federation, make_task
from fedddp.runs.claim import default_folder, home
from fedddp.runs.finished import Run
from fedddp.runs.private import Privacy, make_privacy
from fedddp.runs.rank import STOPPED, take_part

if TYPE_CHECKING:
    import pandas

Part = str | Mapping[str, Any]  # a name, or a mapping with `name` and settings


class RunFailed(RuntimeError):
    """A run on other processes failed; the text ends with the failing rank's own trace."""


def run(
    experiment: str | None = None,
    *,
    model: Part | nn.Module | Model | None = None,
    data: Part | Source | Any = None,
    clients: Mapping[str, Any] | Sequence[Any] | None = None,
    test: Any = None,
    split: Part | Split | None = None,
    method: Part | Method[Any, Any, Any] | None = None,
    local: Part | Solver | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
    ranks: int = 1,
    folder: Path | str | None = None,
    resume: bool = True,
    quiet: bool = False,
) -> Run:
    """Run an experiment by its name, or one's own module and data, and return what came of it.

    `clients` holds each client's examples by its name: pairs of tensors, or torch Datasets. Or `data` is one such pair
    and `split` says how it is dealt out. `test` is a pair to evaluate on. `model` is a module, whose parameters are
    the start. `method`, `local`, `split`, `data` and `model` may each be a name, a mapping such as
    {"name": "ivon", "lr": 0.01}, or an object. `settings` are any others by dotted key, as on the command line.

    `ranks` above 1 starts so many processes. The run's folder is named by its configuration, unless given; a run
    that is there already goes on, or is returned if it is finished, unless resume=False.
    """
    config = configure(
        experiment,
        model=model,
        data=data,
        clients=clients,
        test=test,
        split=split,
        method=method,
        local=local,
        rounds=rounds,
        seed=seed,
        settings=settings,
    )
    name = home(experiment, config) if experiment or _named_data(data, clients) else "python"
    out = Path(folder) if folder is not None else default_folder(Path("runs") / name, config, resume)
    module = model if isinstance(model, nn.Module) else None
    if not (resume and not damaged(out / "summary.json") and _same(out, config)):
        _start(config, out, ranks, resume and out.exists(), quiet)
    return Run(out, trust=True, module=module)


def configure(
    experiment: str | None = None,
    *,
    model: Any = None,
    data: Any = None,
    clients: Any = None,
    test: Any = None,
    split: Any = None,
    method: Any = None,
    local: Any = None,
    rounds: int | None = None,
    seed: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Config:
    """The configuration that `run` would run."""
    given: dict[str, Any] = {}
    more: dict[str, Any] = {} if seed is None else {"seed": seed}
    own = not _named_data(data, clients)
    if own:
        given |= _own_data(data, clients, test, split)
        experiment = experiment or ""
    elif test is not None:
        raise ValueError("test: goes with data or clients of your own; a named data set brings its own test examples")
    parts = {"model": model, "data": None if own else data, "split": split, "method": method, "local": local}
    for section, part in parts.items():
        if isinstance(part, nn.Module):
            given[section] = GivenModel(module=part)
        elif isinstance(part, str | Mapping):
            more[section] = dict(part) if isinstance(part, Mapping) else part
        elif part is not None and section not in given:
            given[section] = part
    for key, value in {**(settings or {}), **({} if rounds is None else {"federation.rounds": rounds})}.items():
        section, _, name = key.partition(".")
        if not name:
            more[section] = value
            continue
        if isinstance(more.get(section), str):
            more[section] = {"name": more[section]}
        more.setdefault(section, {})[name] = value
    return configuration.load(experiment, more=more, given=given)


def _named_data(data: Any, clients: Any) -> bool:
    """Whether the data is one that can be named."""
    return clients is None and (data is None or isinstance(data, str | Mapping | Source))


def _own_data(data: Any, clients: Any, test: Any, split: Any) -> dict[str, Any]:
    if test is None:
        raise ValueError("test: give a pair (inputs, targets) to evaluate on")
    if clients is None:
        return {"data": given_data(data, test)}
    if data is not None or split is not None:
        raise ValueError("clients: holds all data and says whose it is; leave out data and split")
    source, deal = given_clients(clients, test)
    return {"data": source, "split": deal}


def _same(out: Path, config: Config) -> bool:
    from fedddp.config.schema import relevant

    return relevant(configuration.read(out / "config.yaml")) == config.relevant


def _start(config: Config, out: Path, ranks: int, resume: bool, quiet: bool) -> None:
    """In this process, as the rank that it is; or in processes of its own."""
    if ranks > 1 and "RANK" not in os.environ and _srun() is None:
        code = here.start(partial(_rank, config, out, resume, quiet), ranks, config.federation.threads)
        if code not in (0, STOPPED):
            trace = out / "traceback.txt"
            raise RunFailed(trace.read_text() if trace.is_file() else f"{out}: a rank ended with exit code {code}")
        return
    with _world(out):
        take_part(config, out, resume, quiet)


def _rank(config: Config, out: Path, resume: bool, quiet: bool) -> int:
    return 0 if take_part(config, out, resume, quiet) is not None else STOPPED


def _srun() -> rendezvous.Place | None:
    """This process's place among the tasks of srun, if it is one of several."""
    several = int(os.environ.get("SLURM_STEP_NUM_TASKS", "1")) > 1
    return rendezvous.Place.in_slurm() if several and "RANK" not in os.environ else None


@contextmanager
def _world(folder: Path) -> Iterator[None]:
    """Tasks of srun meet in the folder; ranks of torchrun have met; any other process is alone."""
    place = _srun()
    if place is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    kept = rendezvous.join(folder, place)
    yield
    del kept


def forget(
    folder: Path | str, client: str, *, rounds: int = 0, ranks: int = 1, out: Path | str | None = None, **options: Any
) -> Run:
    """The run in `folder` without one of its clients, gone on for so many rounds, in a folder of its own.

    For a run of Python objects, `options` are those of the call of `run` that made it.
    """
    path = Path(folder)
    config = configure(**options) if options else members.configuration(path)
    there = Path(out) if out is not None else members.beside(path, "without", client)
    return _gone_on(members.forget(path, config, client, rounds, there), there, ranks, options)


def join(
    folder: Path | str, client: str, *, rounds: int = 0, ranks: int = 1, out: Path | str | None = None, **options: Any
) -> Run:
    """The run in `folder` with a newcomer, gone on for so many rounds, in a folder of its own.

    The newcomer is a client of the split that was away (federation.without); or, for a run of Python objects, one of
    `clients` in `options`, which are otherwise those of the call of `run` that made it.
    """
    path = Path(folder)
    there = Path(out) if out is not None else members.beside(path, "with", client)
    if "clients" in options:
        config = members.join_named(path, configure(**options), client, rounds, there)
    else:
        config = members.join(path, members.configuration(path), client, rounds, there)
    return _gone_on(config, there, ranks, options)


def _gone_on(config: Config, out: Path, ranks: int, options: Mapping[str, Any]) -> Run:
    _start(config, out, ranks, resume=True, quiet=True)
    module = options.get("model")
    return Run(out, trust=True, module=module if isinstance(module, nn.Module) else None)


def load(folder: Path | str, *, trust: bool = False, model: nn.Module | None = None) -> Run:
    """A run in its folder, finished or not.

    A model that is not built in is code: it is imported only with `trust`, or handed in as a module like the run's.
    """
    path = Path(folder)
    if not (path / "config.yaml").is_file():
        raise ValueError(f"{path}: no run here (config.yaml is missing)")
    return Run(path, trust, model)


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
    with _world(Path("runs") / ".federation"):
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


def sweep(
    experiment: str | None = None,
    grid: Mapping[str, Any] | None = None,
    *,
    cluster: str = "local",
    ranks: int | None = None,
    max_parallel: int | None = None,
    profile: str | None = None,
    out: Path | str | None = None,
    wait: bool = True,
) -> list[Run]:
    """Every combination of a grid such as {"method": ["fedavg", "fedprox"], "seed": range(3)}, as `fedddp sweep`.

    The runs are returned when they have ended; with wait=False, at once. One that was stopped is not `finished`.
    """
    points = _points(grid or {})
    folder = Path(out) if out is not None else place(experiment, points)
    options = Options(cluster, profile, ranks=ranks, max_parallel=max_parallel, out=folder, wait=wait)
    if sweeps.launch(options, experiment, points) not in (0, STOPPED):
        raise RunFailed(
            f"{folder}: not all runs ended well; fedddp.report([...]) and `fedddp status {folder}` say more"
        )
    return [Run(planned.folder, trust=True) for planned in plan(experiment, points, folder)]


def _points(grid: Mapping[str, Any]) -> list[list[str]]:
    choices = [[(key, one) for one in _choices(value)] for key, value in grid.items()]
    return [[f"{key}={_word(value)}" for key, value in point] for point in product(*choices)]


def _choices(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple | range | set) else [value]


def _word(value: Any) -> str:
    """As on the command line."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def report(*folders: Path | str, out: Path | str | None = None, **options: Any) -> "pandas.DataFrame":
    """A frame with a row for each run below the folders; `out` also writes a table (.md, .csv) or a page (.html).

    Options are those of `fedddp report`: by, at, metrics, best_over, target.
    """
    frame = reports.load(*folders)
    if out is not None:
        reports.write(reports.make(folders, **options), Path(out), ", ".join(map(str, folders)))
    found: pandas.DataFrame = frame
    return found
