"""A run to look at from Python: its metrics, its model, its posterior, its predictions."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from fedddp.core.files import Damaged, read_record
from fedddp.core.gaussian import Family, family_of
from fedddp.core.params import Layout
from fedddp.core.rng import stream
from fedddp.evaluation.calibrate import FILE as CALIBRATION
from fedddp.records.metrics import read_metrics
from fedddp.records.table import Table, read_tables
from fedddp.runs import predict as prediction
from fedddp.runs.claim import read_config

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Posterior:
    """A Gaussian over the parameters."""

    lam: Tensor  # natural parameters
    layout: Layout

    @property
    def family(self) -> Family:
        return family_of(self.lam)

    @property
    def mean(self) -> Tensor:
        """[P]"""
        return self.family.mean(self.lam)

    @property
    def precision(self) -> Tensor:
        """[P], [P, P] for a full covariance, or [1] where all parameters share one."""
        return self.family.precision(self.lam)

    def sample(self, count: int, seed: int = 0) -> Tensor:
        """[count, P] the same for the same seed."""
        size = self.layout.numel
        noise = torch.randn(count, size, generator=stream(seed, "samples"), dtype=self.lam.dtype)
        return torch.stack([self.family.sample(self.lam, row) for row in noise])

    def named(self, vector: Tensor) -> dict[str, Tensor]:
        """A vector [..., P] by the names and in the shapes of the module's parameters."""
        return self.layout.views(vector)


def _read(path: Path) -> dict[str, Any]:
    try:
        return read_record(path)
    except Damaged as error:
        raise Damaged(f"{error}; the command that made the run makes it anew, with --resume") from error


def _arrays(table: Table) -> dict[str, Any]:
    return {name: values.numpy() for name, values in table.columns.items()}


@dataclass(frozen=True)
class Run:
    """One run in its folder, finished or not."""

    folder: Path
    trust: bool = False  # import a model that is not built in, from where the folder says
    module: nn.Module | None = None  # one like the run's, where it was given as an object

    def __repr__(self) -> str:
        shown = {k: round(v, 4) for k, v in self.summary.items() if k in ("accuracy", "nll", "rmse")}
        what = self.summary.get("method", "not finished")
        return f"Run({str(self.folder)!r}: {what}{''.join(f', {k} {v}' for k, v in shown.items())})"

    @cached_property
    def config(self) -> dict[str, Any]:
        """Every setting, by section."""
        return read_config(self.folder / "config.yaml")

    @property
    def finished(self) -> bool:
        return (self.folder / "summary.json").is_file()

    @cached_property
    def summary(self) -> dict[str, Any]:
        """What the run ended with; empty if it has not."""
        return _read(self.folder / "summary.json") if self.finished else {}

    @property
    def metrics(self) -> "pandas.DataFrame":
        """A row for each round; a warning names what cannot be read."""
        import pandas

        frame = pandas.DataFrame(read_metrics(self.folder / "metrics.jsonl"))
        return frame.set_index("round", drop=False) if len(frame) else frame

    @property
    def clients(self) -> "pandas.DataFrame":
        """A row for each client: its name, its number of examples and, where there are classes, of each class.

        With evaluation.clients, the columns of the last evaluation's table beside them; `unseen` clients come last.
        """
        import pandas

        told = _read(self.folder / "clients.json")
        frame = pandas.DataFrame({"client": told["names"], "examples": told["examples"]})
        counts = np.array(told["counts"])
        for number, label in enumerate(told["labels"]):
            frame[label] = counts[:, number]
        tables = read_tables(self.folder)
        if tables:
            frame["unseen"] = np.arange(len(frame)) >= len(frame) - told["unseen"]
            frame = frame.join(pandas.DataFrame(_arrays(tables[max(tables)])))
        return frame

    @property
    def client_metrics(self) -> "pandas.DataFrame":
        """A row for each evaluated round and client, with the columns of client_metrics.jsonl."""
        import pandas

        names = _read(self.folder / "clients.json")["names"]
        frames = [
            pandas.DataFrame({"round": number, "client": names, **_arrays(table)})
            for number, table in read_tables(self.folder).items()
        ]
        return pandas.concat(frames, ignore_index=True) if frames else pandas.DataFrame()

    @cached_property
    def calibration(self) -> dict[str, Any]:
        """What a run with evaluation.calibration learned of its answers (docs/clients.md)."""
        return _read(self.folder / CALIBRATION)

    @cached_property
    def trained(self) -> prediction.Trained:
        return prediction.load(self.folder, self.trust, self.module)

    @cached_property
    def model(self) -> nn.Module:
        """The trained module, at the posterior's mean where there is one, or the first of an ensemble."""
        task, point = self.trained.task, self.trained.point[0]
        task.module.load_state_dict(task.layout.views(point), strict=False)
        return task.module.eval()

    @cached_property
    def posterior(self) -> Posterior | None:
        """Of a method that has one."""
        trained = self.trained
        return None if trained.lam is None else Posterior(trained.lam, trained.task.layout)

    def predict(self, inputs: Any, samples: int = 32, coverage: float | None = None) -> dict[str, Tensor]:
        """For inputs as the run's data stores them: probabilities, their entropy, and mutual_information.

        Averaged over samples of the posterior, the members of the ensemble, or the one model that there is. With
        `coverage`, of a run with evaluation.calibration, also `sets` of classes that hold the true one so often, and
        `tempered` probabilities.
        """
        if coverage is not None:
            return prediction.with_sets(self.trained, self.folder, torch.as_tensor(inputs), samples, coverage)
        return prediction.predict(self.trained, torch.as_tensor(inputs), samples)
