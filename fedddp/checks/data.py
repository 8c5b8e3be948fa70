"""Checks of a data source: the same examples at every call, of one shape, finite, and with targets that there are."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedddp.checks.ranks import apart
from fedddp.checks.rows import Broken, Sheet
from fedddp.config import loading as configuration
from fedddp.config.loading import Config
from fedddp.core.data import IGNORED, Dataset, Examples
from fedddp.core.objective import choose

CHUNK = 1024  # examples made into model inputs at a time
FORMAT = "the module docstring of fedddp/core/data.py says what they may be"


@dataclass
class Checks:
    config: Config

    @cached_property
    def data(self) -> Dataset:
        found: Dataset = self.config.data.load()
        return found

    @property
    def parts(self) -> dict[str, Examples]:
        held = {} if self.data.validation is None else {"validation": self.data.validation}
        return {"train": self.data.train, "test": self.data.test, **held}

    def loads(self) -> str:
        """There are examples, each with its target, and on the CPU."""
        for name, part in self.parts.items():
            for kind, tensor in _tensors(part):
                if not isinstance(tensor, Tensor) or tensor.device.type != "cpu":
                    raise Broken(f"{name}.{kind}: must be a tensor on the CPU, is {type(tensor).__name__}")
                if len(tensor) != len(part.inputs):
                    raise Broken(f"{name}: {len(part.inputs)} inputs beside {len(tensor)} {kind}")
            if not len(part):
                raise Broken(f"{name}: has no examples")
        sizes = ", ".join(f"{len(part)} {name}" for name, part in self.parts.items())
        return f"{sizes}; inputs {list(self.data.input_shape)}, {self.data.classes or 'no'} classes"

    def alike(self) -> str:
        """Training and test examples have the same shapes and types."""
        first = dict(_tensors(self.data.train))
        for name, part in self.parts.items():
            for kind, tensor in _tensors(part):
                if kind != "clients" and _shape(tensor) != _shape(first[kind]):
                    raise Broken(f"{kind}: {_shape(first[kind])} in train, {_shape(tensor)} in {name}")
        return ", ".join(f"{kind} {_shape(tensor)}" for kind, tensor in first.items())

    def finite(self) -> str:
        """Model inputs and targets, after scale and shift."""
        for name, part in self.parts.items():
            for start in range(0, len(part), CHUNK):
                inputs = self.data.prepare(part.inputs[start : start + CHUNK], torch.float32)
                for kind, tensor in (("inputs", inputs), ("targets", part.targets[start : start + CHUNK])):
                    bad = ~tensor.reshape(len(tensor), -1).isfinite().all(1)
                    if bool(bad.any()):
                        raise Broken(f"{name}.{kind}[{start + int(bad.int().argmax())}] is not finite")
        return "inputs as the model sees them, and targets"

    def targets(self) -> str:
        """Of a kind that there is an objective for, and within the classes."""
        objective, classes = choose("auto", self.data), self.data.classes
        for name, part in self.parts.items():
            if classes and part.targets.is_floating_point() and part.targets.dim() == 1:
                raise Broken(f"{name}.targets: are {part.targets.dtype} for {classes} classes; {FORMAT}")
            real = part.targets[part.targets != IGNORED] if self.data.tokens else part.targets
            low, high = real.min().item(), real.max().item()
            several = part.targets.dim() == 2 and not self.data.tokens
            most = 1 if several else classes - 1
            if classes and (low < 0 or high > most):
                raise Broken(f"{name}.targets: {low}..{high}, outside 0..{most}; {FORMAT}")
            if classes and several and part.targets.shape[1] != classes:
                raise Broken(f"{name}.targets: {part.targets.shape[1]} columns for classes={classes} labels")
        return f"{type(objective).__name__}: {low}..{high}"

    def same(self) -> str:
        """The source gives the same when asked again, here and in another process."""
        again, elsewhere = self.config.data.load(), apart(self._elsewhere)[0]
        for name, part in self.parts.items():
            for kind, tensor in _tensors(part):
                for found, where in ((getattr(again, name), "a second time"), (elsewhere[name], "in another process")):
                    if not _equal(tensor, getattr(found, kind)):
                        raise Broken(
                            f"{name}.{kind} differs when loaded {where}; draw from a seed of its own, such as "
                            "fedddp.core.rng.stream('my_data')"
                        )
        return "equal when loaded a second time and in another process"

    def _elsewhere(self) -> dict[str, Examples]:
        torch.manual_seed(1)
        return Checks(self.config).parts


def check(sheet: Sheet, words: Sequence[str], ranks: int) -> None:
    checks = Checks(configuration.load(None, words))
    rows = {
        "train and test alike": checks.alike,
        "finite": checks.finite,
        "targets": checks.targets,
        "same at every call": checks.same,
    }
    if not sheet.hold("loads", checks.loads):
        sheet.skip([*rows], "it does not load")
        return
    for name, row in rows.items():
        sheet.hold(name, row)


def _tensors(part: Examples) -> Iterator[tuple[str, Tensor]]:
    yield "inputs", part.inputs
    yield "targets", part.targets
    if part.clients is not None:
        yield "clients", part.clients


def _shape(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} [N{''.join(f', {size}' for size in tensor.shape[1:])}]"


def _equal(a: Tensor | None, b: Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.dtype == b.dtype and a.shape == b.shape and torch.equal(a.nan_to_num(), b.nan_to_num())
