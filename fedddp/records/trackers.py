"""Other places that a run's numbers go to: Weights & Biases, MLflow, or a class of one's own (evaluation.trackers).

A tracker is told when the run begins, every round's numbers, and how it ended. One that fails is said and left out: it
does not end a run.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from fedddp.core.check import hint, shown


@dataclass(frozen=True)
class About:
    """What a tracker is told of a run."""

    name: str  # by which people tell runs apart
    folder: Path
    settings: Mapping[str, Any]  # all that can change a result, by dotted key
    done: int  # rounds that an earlier part of the run has told already

    @property
    def project(self) -> str:
        """The folder of the experiment's runs."""
        return self.folder.absolute().parent.name


class Tracker(ABC):
    """`evaluation.trackers=[package.module:Class]` names one's own."""

    @abstractmethod
    def begin(self, about: About) -> None: ...

    @abstractmethod
    def round(self, step: int, numbers: Mapping[str, float]) -> None:
        """The numbers of a round by their tags, as in TensorBoard."""

    @abstractmethod
    def end(self, failed: bool) -> None: ...


class Wandb(Tracker):
    """Weights & Biases; WANDB_MODE=offline writes below the run's folder alone."""

    run: Any

    def begin(self, about: About) -> None:
        import wandb

        settings = {"dir": str(about.folder), "config": dict(about.settings), "id": about.folder.name}
        self.run = wandb.init(project=about.project, name=about.name, resume="allow", **settings)

    def round(self, step: int, numbers: Mapping[str, float]) -> None:
        self.run.log(dict(numbers), step=step)

    def end(self, failed: bool) -> None:
        self.run.finish(exit_code=int(failed))


class Mlflow(Tracker):
    """MLflow; MLFLOW_TRACKING_URI says where, a file: or sqlite: address needs no server."""

    client: Any
    id: str

    def begin(self, about: About) -> None:
        from mlflow.tracking import MlflowClient

        self.client = MlflowClient()
        found = self.client.get_experiment_by_name(about.project)
        experiment = found.experiment_id if found else self.client.create_experiment(about.project)
        tags = {"mlflow.runName": about.name, "folder": str(about.folder)}
        self.id = self.client.create_run(experiment, tags=tags).info.run_id
        for key, value in about.settings.items():
            self.client.log_param(self.id, key, str(value)[:500])

    def round(self, step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            self.client.log_metric(self.id, name, value, step=step)

    def end(self, failed: bool) -> None:
        self.client.set_terminated(self.id, "FAILED" if failed else "FINISHED")


BUILTIN: dict[str, type[Tracker]] = {"wandb": Wandb, "mlflow": Mlflow}


def find(name: str) -> type[Tracker]:
    """A built-in tracker, or package.module:Class."""
    if name in BUILTIN:
        return BUILTIN[name]
    module, _, kind = name.rpartition(":")
    if not module:
        raise ValueError(f"evaluation.trackers={shown(name)}: unknown; {hint(name, BUILTIN)} (or package.module:Class)")
    try:
        found = getattr(import_module(module), kind)
    except (ImportError, AttributeError) as error:
        raise ValueError(f"evaluation.trackers={shown(name)}: cannot be imported: {error}") from error
    if not (isinstance(found, type) and issubclass(found, Tracker)):
        raise ValueError(f"evaluation.trackers={shown(name)}: must derive from fedddp.records.trackers.Tracker")
    return found


@dataclass
class Trackers:
    """All of a run's trackers as one."""

    say: Callable[[str], None]
    active: dict[str, Tracker] = field(default_factory=dict)

    def begin(self, names: Sequence[str], about: About) -> None:
        self.active = {name: find(name)() for name in names}
        self._each(lambda tracker: tracker.begin(about))

    def round(self, step: int, numbers: Mapping[str, float]) -> None:
        self._each(lambda tracker: tracker.round(step, numbers))

    def end(self, failed: bool) -> None:
        self._each(lambda tracker: tracker.end(failed))
        self.active = {}

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self.active.items()):
            try:
                call(tracker)
            except Exception as error:  # a network, a disk or a service of others must not end the run
                del self.active[name]
                self.say(f"evaluation.trackers: {name} failed and is left out: {type(error).__name__}: {error}")
