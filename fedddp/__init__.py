"""Federated and Bayesian learning as collectives: clients on ranks, servers as sums.

    import fedddp
    run = fedddp.run("digits", method="bayes_admm", seed=1)
    run.metrics, run.model, run.posterior, run.predict(inputs)

`__all__` is what is promised; everything else may move. Names are imported when they are first used: torch takes
seconds, and `fedddp --help` needs none of it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedddp.api.by_round import Result, Rounds, federation
    from fedddp.api.configuring import configure
    from fedddp.api.running import RunFailed, forget, join, load, run
    from fedddp.api.sweeping import report, sweep
    from fedddp.clients.cohort import Batch, Cohort
    from fedddp.core import gaussian
    from fedddp.core.data import Dataset, Examples, Source
    from fedddp.core.gaussian import Family
    from fedddp.core.model import Model
    from fedddp.core.shards import Shards, Split
    from fedddp.core.task import Task
    from fedddp.exchange.messages import Gather, Mean, Message, Sum, Totals
    from fedddp.rounds.method import Clients, Method, Phase, Server
    from fedddp.rounds.solver import (
        Fit,
        Nothing,
        PointSolver,
        PosteriorFit,
        PosteriorSolver,
        Samples,
        SamplingSolver,
        Solver,
    )
    from fedddp.runs.finished import Posterior, Run

__version__ = "0.2.0"

_PLACES = {
    "fedddp.api.by_round": "Result Rounds federation",
    "fedddp.api.configuring": "configure",
    "fedddp.api.running": "RunFailed forget join load run",
    "fedddp.api.sweeping": "report sweep",
    "fedddp.clients.cohort": "Batch Cohort",
    "fedddp.core.data": "Dataset Examples Source",
    "fedddp.core.gaussian": "Family",
    "fedddp.core.model": "Model",
    "fedddp.core.shards": "Shards Split",
    "fedddp.core.task": "Task",
    "fedddp.exchange.messages": "Gather Mean Message Sum Totals",
    "fedddp.rounds.method": "Clients Method Phase Server",
    "fedddp.rounds.solver": "Fit Nothing PointSolver PosteriorFit PosteriorSolver Samples SamplingSolver Solver",
    "fedddp.runs.finished": "Posterior Run",
}
_MODULE = {name: module for module, names in _PLACES.items() for name in names.split()}

__all__ = [
    "Batch",
    "Clients",
    "Cohort",
    "Dataset",
    "Examples",
    "Family",
    "Fit",
    "Gather",
    "Mean",
    "Message",
    "Method",
    "Model",
    "Nothing",
    "Phase",
    "PointSolver",
    "Posterior",
    "PosteriorFit",
    "PosteriorSolver",
    "Result",
    "Rounds",
    "Run",
    "RunFailed",
    "Samples",
    "SamplingSolver",
    "Server",
    "Shards",
    "Solver",
    "Source",
    "Split",
    "Sum",
    "Task",
    "Totals",
    "configure",
    "federation",
    "forget",
    "gaussian",
    "join",
    "load",
    "report",
    "run",
    "sweep",
]


def __getattr__(name: str) -> Any:
    if name == "gaussian":
        return import_module("fedddp.core.gaussian")
    if name not in _MODULE:
        raise AttributeError(f"module 'fedddp' has no attribute {name!r}")
    return vars(import_module(_MODULE[name]))[name]


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
