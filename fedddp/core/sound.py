"""What a run can be made of, or one line that says why not: of a data set, and of a model's outputs for it.

A number that is not finite, a label out of range or a model of the wrong shape would otherwise show as the failure of
some client in some round, or not at all.
"""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.overrides import TorchFunctionMode

from fedddp.core.check import first_line, fits_memory
from fedddp.core.data import IGNORED, Dataset, Examples
from fedddp.core.objective import NextToken, SquaredError
from fedddp.core.task import Task

SOME = 4096  # examples looked at together
MAKES = {torch.empty, torch.zeros, torch.ones, torch.rand, torch.randn}


def refuse_unfit(data: Dataset, where: str, remedy: str = "") -> None:
    """`where` names the data; `remedy` what to do if nothing is there to test on."""
    for name, part in (("training", data.train), ("test", data.test), ("validation", data.validation)):
        for problem in () if part is None else _problems(data, part):
            more = f"; {remedy}" if remedy and part is data.test and not len(part) else ""
            raise ValueError(f"{where}: the {name} set {problem}{more}")
    if data.classes == 1 and data.train.targets.dim() == 1:
        raise ValueError(f"{where}: all examples are of one class; there is nothing to tell apart")


def _problems(data: Dataset, part: Examples) -> Iterator[str]:
    inputs, targets = part.inputs, part.targets
    if len(inputs) != len(targets):
        yield f"has {len(inputs)} inputs and {len(targets)} targets"
    if len(targets) == 0:
        yield "is empty"
    if inputs.shape[1:] != data.train.inputs.shape[1:]:
        yield f"has inputs {list(inputs.shape[1:])}, to train on {list(data.train.inputs.shape[1:])}"
    if prod(inputs.shape[1:]) == 0:
        yield f"has inputs without a number in them: {list(inputs.shape)}"
    if inputs.is_complex() or inputs.dtype == torch.bool:
        yield f"has inputs of type {inputs.dtype}; store them as uint8, other integers (tokens) or floats"
    bad = _first_not_finite(inputs)
    if bad is not None:
        yield f"holds numbers that are not finite, first in the inputs of example {bad}; leave such examples out"
    if data.tokens and int(inputs.min()) < 0:
        yield f"holds the token {int(inputs.min())}; tokens are numbered from 0"
    yield from _of_targets(data, targets)


def _of_targets(data: Dataset, targets: Tensor) -> Iterator[str]:
    bad = _first_not_finite(targets)
    if bad is not None:
        yield f"holds a target that is not finite, first of example {bad}; leave such examples out"
    if data.classes == 0:
        return
    labels = targets[targets != IGNORED] if data.tokens and targets.dim() == 2 else targets
    if targets.dim() == 2 and not data.tokens:
        if targets.shape[1] != data.classes or bool(((targets != 0) & (targets != 1)).any()):
            yield f"must have a 0 or 1 for each of {data.classes} labels as targets; it has others"
    elif targets.is_floating_point() or targets.is_complex():
        yield f"has targets of type {targets.dtype}; classes are integers from 0"
    elif len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < data.classes:
        yield f"has targets from {int(labels.min())} to {int(labels.max())}, expected 0 to {data.classes - 1}"


def _first_not_finite(values: Tensor) -> int | None:
    if not values.is_floating_point():
        return None
    for number, some in enumerate(values.split(SOME)):
        fine = some.isfinite()
        if not bool(fine.all()):
            return number * SOME + int(fine.flatten(1).all(1).int().argmin() if fine.dim() > 1 else fine.int().argmin())
    return None


def refuse_outputs(task: Task, name: str) -> None:
    """One training example, of a text the one with the largest token, through the model as it starts."""
    inputs = task.data.train.inputs
    row = int(inputs.flatten(1).amax(1).argmax()) if task.data.tokens else 0
    shape, training = list(task.data.input_shape), task.module.training
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            found: Any = task.outputs(task.start, inputs[row : row + 1])
    except Exception as error:  # a module of the user's own may fail in any way
        raise ValueError(f"model={name}: fails on an input of shape {shape}: {first_line(error)}") from error
    finally:
        task.module.train(training)
    wanted = [1, task.objective.outputs(task.data)]
    if isinstance(task.objective, NextToken):
        length = task.data.prepare(inputs[row : row + 1], task.dtype).shape[-1]
        wanted.insert(1, length if task.data.named else task.data.train.targets.shape[1])
    got = list(found.shape) if isinstance(found, Tensor) else type(found).__name__
    alone = isinstance(task.objective, SquaredError) and wanted == [1, 1] and got == [1]
    if got != wanted and not alone:
        raise ValueError(
            f"model={name}: gives {got} for one input of shape {shape}, wanted {wanted}; change its last layer, "
            "or choose another model.loss"
        )


class Measured(TorchFunctionMode):
    """Inside it, more numbers than the machine can hold are refused before they are asked for."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.made = what, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in MAKES:
            shape = (kwargs or {}).get("size", args[0] if len(args) == 1 and not isinstance(args[0], int) else args)
            self.made += prod(int(size) for size in shape)
            fits_memory(f"{self.what}: needs at least {self.made:,} parameters", 4 * self.made, "make it smaller")
        return func(*args, **(kwargs or {}))


def whole(values: Any, what: str) -> NDArray[np.int64]:
    """Integers [N] of a list or an array; fractions, booleans and texts are refused, where numpy would cut them off."""
    if isinstance(values, np.ndarray):
        fine = values.dtype.kind in "iu"
    else:
        fine = isinstance(values, list | tuple) and all(type(value) is int for value in values)
    if not fine:
        raise ValueError(f"{what} must be integers")
    try:
        return np.asarray(values, np.int64)
    except OverflowError:
        raise ValueError(f"{what} must be integers of 64 bits") from None
