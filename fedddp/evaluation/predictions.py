"""Predictions of a model, or of several together, in chunks that are the same on any number of ranks."""

from collections.abc import Iterator
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedddp.core.data import Examples
from fedddp.core.task import Task

CHUNK = 1000  # most examples at a time
ROOM = 1 << 28  # bytes that a chunk's outputs, or what a layer makes of it, may take


class Models(Protocol):
    """Parameter vectors [P] whose predictions are averaged: a tensor [M, P], or samples made on the way."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Tensor]: ...


def in_chunks(task: Task, examples: Examples) -> list[slice]:
    count, size = len(examples), chunk_size(task, examples)
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def chunk_size(task: Task, examples: Examples) -> int:
    """Examples at a time; fewer where each has many outputs or large activations, as in language.

    A rule of the model and the data alone: on any number of ranks, kernels see the same shapes.
    """
    return max(1, min(CHUNK, ROOM // _bytes(task, examples.inputs[:1])))


def _bytes(task: Task, one: Tensor) -> int:
    """The most that any layer takes or gives for one example, its outputs counted in double precision."""
    seen = [1]

    def note(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        seen.extend(x.numel() * x.element_size() for x in (*inputs, output) if isinstance(x, Tensor))

    handles = [module.register_forward_hook(note) for module in task.module.modules()]
    try:
        with torch.no_grad():
            return max(8 * task.outputs(task.start, one).numel(), *seen)
    finally:
        for handle in handles:
            handle.remove()


def predict(task: Task, models: Models, examples: Examples, chunk: slice) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        outputs = (task.outputs(theta, examples.inputs[chunk]) for theta in models)
        probabilities = sum(task.objective.probabilities(output) for output in outputs) / len(models)
    assert isinstance(probabilities, Tensor)
    return probabilities, examples.targets[chunk].to(task.device)
