"""A Gaussian over parameters as something to predict with: samples, uncertainty, and plain tensors to read."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from fedddp.core.gaussian import family_of, full
from fedddp.core.objective import OBJECTIVES
from fedddp.core.rng import stream
from fedddp.core.task import Task
from fedddp.rounds.checkpoint import save_tensors


@dataclass(frozen=True)
class Samples:
    """Parameters [P] drawn from a posterior, made anew whenever they are looked at: never all in memory at once.

    Sample i of a round is the same on every rank and in every later look, since its stream is named
    (seed, "posterior", round, i).
    """

    lam: Tensor
    count: int
    seed: int
    round: int
    buffers: Tensor | None = None  # [S] what stands behind the parameters of each

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Tensor]:
        family, size = family_of(self.lam), self.lam.shape[-1] - (self.lam.dim() == 1)
        for number in range(self.count):
            noise = torch.empty(size, dtype=self.lam.dtype)
            noise.normal_(generator=stream(self.seed, "posterior", self.round, number))
            drawn = family.sample(self.lam, noise.to(self.lam.device))
            yield drawn if self.buffers is None else torch.cat([drawn, self.buffers])


def entropy(probabilities: Tensor) -> Tensor:
    """[B] of probabilities [B, classes]."""
    return -torch.special.xlogy(probabilities, probabilities).sum(-1)


def auroc(inside: Tensor, outside: Tensor) -> float:
    """How often a score from outside is above one from inside; ties count half."""
    ranked = inside.sort().values
    below = torch.searchsorted(ranked, outside) + torch.searchsorted(ranked, outside, right=True)
    return float(below.double().mean() / (2 * len(inside)))


def export(path: Path, task: Task, point: Tensor, lam: Tensor | None) -> None:
    """mean.NAME and precision.NAME for every parameter of the module, in its shape.

    A method without a posterior has means only, an ensemble of M has member.NAME [M, ...] instead; a full covariance
    has one matrix `precision` over all parameters in the order of the module's. What a prediction needs of the data
    (scale and shift of its inputs) is there too.
    """
    kind, rows = ("member", point) if len(point) > 1 else ("mean", point[0])
    named = {f"{kind}.{name}": value for name, value in task.layout.views(rows.contiguous()).items()}
    covariance = "none"
    if lam is not None:
        family = family_of(lam)
        covariance, precision = family.name, family.precision(lam)
        if family is full:
            named["precision"] = precision
        else:
            views = task.layout.views(precision.expand(task.layout.numel).contiguous())
            named |= {f"precision.{name}": value for name, value in views.items()}
    data = task.data
    named |= {f"input.{name}": torch.as_tensor(value) for name, value in (("scale", data.scale), ("shift", data.shift))}
    about = {
        "covariance": covariance,
        "input_shape": list(data.input_shape),
        "classes": data.classes,
        "objective": next(name for name, kind in OBJECTIVES.items() if type(task.objective) is kind),
        "outputs": task.objective.outputs(data),
        "tokens": data.tokens,
        "bag": data.bag,
        "named": list(data.named),
        "buffers": point.shape[1] > task.layout.numel,
        "seed": task.streams.seed,
        "rounds": task.rounds,
    }
    save_tensors(path, named, {"fedddp": json.dumps(about)})
