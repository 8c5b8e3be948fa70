"""Runs from Python: started or gone on with, read again, without one of their clients or with a newcomer."""

import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import nn

from fedddp.api.configuring import configure, named_data
from fedddp.api.world import srun, world
from fedddp.config import loading as configuration
from fedddp.config.loading import Config
from fedddp.config.schema import relevant
from fedddp.core.data import Source
from fedddp.core.files import damaged
from fedddp.core.model import Model
from fedddp.core.shards import Split
from fedddp.jobs import here
from fedddp.rounds.method import Method
from fedddp.rounds.solver import Solver
from fedddp.runs import members
from fedddp.runs.claim import default_folder, home
from fedddp.runs.finished import Run
from fedddp.runs.rank import STOPPED, take_part

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
    name = home(experiment, config) if experiment or named_data(data, clients) else "python"
    out = Path(folder) if folder is not None else default_folder(Path("runs") / name, config, resume)
    module = model if isinstance(model, nn.Module) else None
    if not (resume and not damaged(out / "summary.json") and _same(out, config)):
        _start(config, out, ranks, resume and out.exists(), quiet)
    return Run(out, trust=True, module=module)


def _same(out: Path, config: Config) -> bool:
    return relevant(configuration.read(out / "config.yaml")) == config.relevant


def _start(config: Config, out: Path, ranks: int, resume: bool, quiet: bool) -> None:
    """In this process, as the rank that it is; or in processes of its own."""
    if ranks > 1 and "RANK" not in os.environ and srun() is None:
        code = here.start(partial(_rank, config, out, resume, quiet), ranks, config.federation.threads)
        if code not in (0, STOPPED):
            trace = out / "traceback.txt"
            raise RunFailed(trace.read_text() if trace.is_file() else f"{out}: a rank ended with exit code {code}")
        return
    with world(out):
        take_part(config, out, resume, quiet)


def _rank(config: Config, out: Path, resume: bool, quiet: bool) -> int:
    return 0 if take_part(config, out, resume, quiet) is not None else STOPPED


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
