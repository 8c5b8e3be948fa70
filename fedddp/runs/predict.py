"""Predictions of a finished run for new inputs, with what it is unsure of; needs the run's folder, not its data."""

import copy
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fedddp.config.own import find
from fedddp.config.schema import DTYPES, EXTRA, typed
from fedddp.core.data import Dataset, Examples
from fedddp.core.files import Damaged, read_record
from fedddp.core.gaussian import FAMILIES
from fedddp.core.model import Model, Named
from fedddp.core.objective import OBJECTIVES, SquaredError
from fedddp.core.params import Layout
from fedddp.core.plugins import is_path
from fedddp.core.rng import Streams
from fedddp.core.shards import Shards
from fedddp.core.task import Task
from fedddp.evaluation.calibrate import FILE as CALIBRATION
from fedddp.evaluation.conformal import sets, temper, threshold
from fedddp.evaluation.posterior import Samples, entropy
from fedddp.evaluation.predictions import Models
from fedddp.rounds.checkpoint import digest, load_tensors
from fedddp.runs.build import seeded
from fedddp.runs.claim import read_config

CHUNK = 1000


@dataclass(frozen=True)
class Trained:
    """A model as its run left it."""

    task: Task  # without examples
    point: Tensor  # [M, P]: one, or the members of an ensemble
    lam: Tensor | None  # the posterior, where there is one
    rounds: int

    def models(self, samples: int) -> Models:
        """Posterior samples, the same as in the run's last evaluation; or the point or ensemble that there is."""
        if self.lam is None or not samples:
            return self.point
        buffers = self.point[0, self.task.layout.numel :]
        return Samples(self.lam, samples, self.task.streams.seed, self.rounds, buffers)


def load(folder: Path, trust: bool = False, module: nn.Module | None = None) -> Trained:
    """A finished run's model from its config.yaml and posterior.safetensors.

    `trust`: import a model's class from where the folder says, if it is not built in. Or hand in a `module` like it.
    """
    path = folder / "posterior.safetensors"
    if not path.is_file():
        raise ValueError(f"{folder}: no finished run here (posterior.safetensors is missing)")
    _check_file(path)
    values = read_config(folder / "config.yaml")
    try:
        with safe_open(path, framework="pt") as file:  # type: ignore[no-untyped-call]
            about = json.loads(file.metadata()["fedddp"])
        named = load_tensors(path)
    except SafetensorError as error:
        raise ValueError(f"{path}: is not a readable safetensors file: {error}") from error
    dtype = DTYPES[values["federation"]["dtype"]]
    if module is None:
        own = values["model"].get("seed")
        with seeded(values["seed"] if own is None else own):
            module = _build(values["model"], folder, trust, tuple(about["input_shape"]), about["outputs"])
    module = copy.deepcopy(module).to(dtype)
    if about.get("named"):
        module.register_forward_pre_hook(Named(about["named"]), with_kwargs=True)
    layout = Layout.of(module, about.get("buffers", False))
    kind = "member" if f"member.{layout.names[0]}" in named else "mean"
    count = named[f"{kind}.{layout.names[0]}"].numel() // layout.sizes[0]
    rows = [named[f"{kind}.{name}"].reshape(count, -1) for name in layout.names + layout.buffers]
    point = torch.cat(rows, dim=1)
    task = Task(
        module=module,
        layout=layout,
        objective=OBJECTIVES[about["objective"]](),
        data=_data(about, named),
        shards=Shards.none(),
        streams=Streams(about["seed"]),
        rounds=about["rounds"],
        initial=point[0, : layout.numel],
        dtype=dtype,
    )
    return Trained(task, point, _posterior(about["covariance"], layout, named, task.initial), about["rounds"])


def _check_file(path: Path) -> None:
    """Against the digest in summary.json; a posterior that was copied elsewhere without it is believed."""
    remedy = "the command that made the run writes it anew, with --resume"
    try:
        written = read_record(path.with_name("summary.json")).get("files", {}).get(path.name)
    except FileNotFoundError:
        written = None
    except Damaged as error:
        raise ValueError(f"{error}, so {path.name} cannot be checked; {remedy}") from error
    if written is not None and digest(path) != written:
        raise ValueError(f"{path}: is damaged (it does not match its digest in summary.json); {remedy}")


def _build(given: dict[str, Any], folder: Path, trust: bool, shape: tuple[int, ...], outputs: int) -> nn.Module:
    """The model that the run's record names."""
    own = {key: value for key, value in given.items() if key not in ("name", "source", *EXTRA["model"])}
    if "parameters" in given:
        raise ValueError(
            f"{folder}: its model was a module in Python ({given['name']}), which no file can make again; hand in one "
            "like it: fedddp.load(folder, model=net)"
        )
    if is_path(given["name"]) and not trust:
        raise ValueError(
            f"{folder}: its model is {given['name']}, which is code from outside fedddp; if you trust that file "
            "and the copy in the run's folder, say so: --trust, or fedddp.load(folder, trust=True)"
        )
    kind, _ = find("model", given["name"], given.get("source", ""), folder if trust else None)
    model: Model
    model, _ = typed("model", kind, own)
    return model.build(shape, outputs)


def with_sets(trained: Trained, folder: Path, inputs: Tensor, samples: int, coverage: float) -> dict[str, Tensor]:
    """Beside `predict`'s: `sets` [N, classes], which hold the true class as often as asked, and tempered probabilities.

    By what the run learned with evaluation.calibration, for the model and the number of samples that it was learned of.
    """
    try:
        learned = read_record(folder / CALIBRATION)
    except FileNotFoundError:
        raise ValueError(
            f"{folder}: no {CALIBRATION} there, so coverage is unknown; run it with evaluation.calibration=0.5"
        ) from None
    sampled = trained.lam is not None and samples > 0
    if sampled and samples != learned["samples"]:
        remedy = f"take {learned['samples']}, or 0 for its mean alone"
        raise ValueError(f"samples={samples}: the run was calibrated with {learned['samples']} samples; {remedy}")
    kind = learned["kinds"]["averaged" if sampled else "point"]
    counts = torch.zeros(kind["bins"], dtype=torch.long)
    places, held = torch.tensor(kind["scores"], dtype=torch.long).reshape(-1, 2).T
    counts[places] = held
    found = predict(trained, inputs, samples)
    found["sets"] = sets(found["probabilities"], threshold(counts, kind["clients"], coverage))
    found["tempered"] = temper(found["probabilities"], kind["temperature"])
    return found


def predict(trained: Trained, inputs: Tensor, samples: int = 32) -> dict[str, Tensor]:
    """For each input: the averaged prediction, and how uncertain it is.

    Classes: probabilities, their entropy, and mutual_information, the part of the entropy that is disagreement between
    samples. Numbers: the prediction and the deviation of the samples' predictions.
    """
    _check(trained.task, inputs)
    parts = [_predict(trained, chunk, samples) for chunk in inputs.split(CHUNK)]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _predict(trained: Trained, inputs: Tensor, samples: int) -> dict[str, Tensor]:
    task, models = trained.task, trained.models(samples)
    with torch.no_grad():
        each = [task.objective.probabilities(task.outputs(theta, inputs)) for theta in models]
    mean = torch.stack(each).mean(0)
    if isinstance(task.objective, SquaredError):
        return {"prediction": mean, "deviation": torch.stack(each).std(0, correction=0)}
    information = entropy(mean) - torch.stack([entropy(one) for one in each]).mean(0)
    return {"probabilities": mean, "entropy": entropy(mean), "mutual_information": information.clamp_min(0)}


def _check(task: Task, inputs: Tensor) -> None:
    wanted = task.data.input_shape
    if not len(inputs):
        raise ValueError("inputs: are none; give at least one")
    if not task.data.bag and tuple(inputs.shape[1:]) != wanted:
        raise ValueError(f"inputs are {list(inputs.shape)}, the model takes [N, {', '.join(map(str, wanted))}]")


def _data(about: dict[str, Any], named: dict[str, Tensor]) -> Dataset:
    """No examples, but what turns stored inputs into the model's."""
    nothing = Examples(torch.zeros(0, *about["input_shape"]), torch.zeros(0, dtype=torch.long))
    scale, shift = (named[f"input.{name}"] for name in ("scale", "shift"))
    more = {name: about[name] for name in ("tokens", "bag")} | {"named": tuple(about.get("named", ()))}
    return Dataset(nothing, nothing, about["classes"], scale, shift, **more)


def _posterior(covariance: str, layout: Layout, named: dict[str, Tensor], mean: Tensor) -> Tensor | None:
    if covariance == "none":
        return None
    family = FAMILIES[covariance]
    if covariance == "full":
        return family.natural(mean, named["precision"])
    precision = layout.flatten({name: named[f"precision.{name}"] for name in layout.names})
    return family.natural(mean, precision[:1] if covariance == "isotropic" else precision)
