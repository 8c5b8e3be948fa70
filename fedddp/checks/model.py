"""Checks of a model: it starts from its seed alone, keeps examples apart, and gives the same gradients by vmap."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from fedddp.checks import small
from fedddp.checks.method import Checks as Runs
from fedddp.checks.rows import Broken, Sheet
from fedddp.clients.oracle import Oracle
from fedddp.core.task import Task
from fedddp.runs.build import make_task

CPU = torch.device("cpu")
CLOSE = 1e-9  # relative, in float64
CLIENTS, EXAMPLES = 3, 5


@dataclass
class Checks:
    words: Sequence[str]

    @cached_property
    def task(self) -> Task:
        return self._build()

    def _build(self, *more: str) -> Task:
        return make_task(small.load([*self.words, *more], "federation.dtype=float64"), CPU)

    def builds(self) -> str:
        """It builds for the data's shape, has parameters, and no batch normalisation: else make_task raises."""
        layout = self.task.layout
        return (
            f"{layout.numel} parameters in {len(layout.names)} tensors, for inputs {list(self.task.data.input_shape)}"
        )

    def starts(self) -> str:
        """The initial parameters follow from the model's seed."""
        torch.manual_seed(1)
        if not torch.equal(self.task.initial, self._build().initial):
            raise Broken("the same seed gives other initial parameters; draw them from torch's generator alone")
        other = self._build("model.seed=12345").initial
        return "same seed, same parameters; another seed gives " + (
            "the same" if torch.equal(other, self.task.initial) else "others"
        )

    def outputs(self) -> str:
        """[N, outputs], or [N, T, outputs] for tokens; a row from its own example alone, the same every time."""
        task, stored = self.task, self.task.data.train.inputs[:EXAMPLES]
        found = task.outputs(task.initial, stored)
        wanted = (EXAMPLES, *task.data.train.targets.shape[1:]) if task.data.tokens else (EXAMPLES,)
        wanted = (*wanted, task.objective.outputs(task.data))
        if tuple(found.shape) != wanted:
            raise Broken(f"{list(found.shape)} for {EXAMPLES} inputs, instead of {list(wanted)}")
        if not torch.equal(found, task.outputs(task.initial, stored)):
            raise Broken("differ when asked again for the same inputs; nothing random may happen outside of training")
        alone = torch.cat([task.outputs(task.initial, stored[row : row + 1]) for row in range(EXAMPLES)])
        _close("outputs of one example, alone and beside others", alone, found)
        return f"{list(found.shape)} for {EXAMPLES} inputs; each from its own example alone"

    def gradients(self) -> str:
        """By vmap over clients and one by one; with whole batches, and with one that is padded."""
        task = self.task
        index = torch.arange(CLIENTS * EXAMPLES).view(CLIENTS, EXAMPLES) % len(task.data.train)
        inputs, targets = task.data.gather(index, task.dtype)
        theta = task.initial.repeat(CLIENTS, 1) * torch.linspace(0.5, 1.5, CLIENTS, dtype=task.dtype).unsqueeze(1)
        short = torch.ones(CLIENTS, EXAMPLES, dtype=task.dtype)
        short[-1, EXAMPLES // 2 :] = 0
        for name, weights in (("gradients", None), ("gradients of a short batch", short)):
            stacked, looped = (
                Oracle(task.module, task.layout, task.objective, vectorise)(theta, inputs, targets, weights)[0]
                for vectorise in (True, False)
            )
            _close(f"{name} by vmap and one by one", stacked, looped)
        return f"of {CLIENTS} clients by vmap as one by one; of a short batch, too"


def check(sheet: Sheet, words: Sequence[str], ranks: int) -> None:
    checks, runs = Checks(words), Runs(words, ranks)
    small.load(words)  # a mistake in the words ends here
    rows = {
        "runs and stays finite": runs.runs,
        "device": runs.device,  # before any gradient, see ranks.warm
        "same bits": runs.all_clients,
        "same start": checks.starts,
        "outputs": checks.outputs,
        "gradients": checks.gradients,
    }
    if not sheet.hold("builds", checks.builds):
        sheet.skip([*rows], "it does not build")
        return
    for name, row in rows.items():
        sheet.hold(name, row)


def _close(what: str, a: Tensor, b: Tensor) -> None:
    gap, scale = float((a - b).abs().max()), float(b.abs().max())
    if not gap <= CLOSE * max(scale, 1e-6):
        raise Broken(f"{what} differ by {gap:.2g}, of {scale:.2g}")
