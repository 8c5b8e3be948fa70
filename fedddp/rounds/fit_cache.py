"""Clients' first fits, kept in a folder: methods that ask the same of the same clients train them once.

One-shot methods differ in what the server makes of models that the clients train alike: from the same start, on the
same examples, in the same order. With federation.fits=FOLDER the first method leaves each cohort's models there and
the others take them, bit for bit what they would have trained. A file's name is a hash of all that a fit depends on.
"""

from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from fedddp.clients.cohort import Cohort
from fedddp.clients.tally import Tally
from fedddp.core import gaussian
from fedddp.core.files import whole
from fedddp.core.gaussian import Family
from fedddp.core.task import Task
from fedddp.rounds.checkpoint import load_tensors, save_tensors
from fedddp.rounds.iterative import Descent
from fedddp.rounds.solver import Fit, PointSolver

SHOWN = 16  # examples whose scaled inputs tell how stored ones are scaled


class Cached(PointSolver):
    """A point solver that looks into the folder before it trains."""

    solver: Descent
    folder: Path

    def memory(self, task: Task, count: int) -> Any:
        return self.solver.memory(task, count)

    def passes(self) -> tuple[int, int]:
        return self.solver.passes()

    def minimise(
        self,
        cohort: Cohort,
        start: Tensor,
        memory: Any,
        site: Tensor | None = None,
        family: Family = gaussian.diagonal,
        watch: Any = None,
    ) -> Fit:
        other = cohort.turn is not None or cohort.draw is not None
        if cohort.round or site is not None or watch is not None or other or self.solver.keep:
            return self.solver.minimise(cohort, start, memory, site, family, watch)
        path = self.folder / f"{name_of(self.solver, cohort, start)}.safetensors"
        part, found = cohort.part(torch.arange(len(cohort))), _load(path)
        if not found:
            theta = self.solver.minimise(part, start, memory).theta
            seen = part.seen()
            found = {"theta": theta, "loss": seen.loss, "steps": seen.steps}
            _save(path, found)
        theta, *tally = (found[name].to(start.device) for name in ("theta", "loss", "steps"))
        part.tally = Tally(tally[0], tally[1].cpu())  # and no ends: they were not kept
        return Fit(theta, memory, cohort.steps(self.solver.epochs, self.solver.batch_size))


def name_of(local: Descent, cohort: Cohort, start: Tensor) -> str:
    """A hash of the solver, the model, the start, and the cohort's examples, order and company."""
    task, oracle = cohort.task, cohort.oracle
    how = (type(oracle).__name__, oracle.vectorise, torch.__version__, start.device.type, start.dtype)
    digest = blake2b(digest_size=16)
    solver = (type(local).__module__, local, local.rate(cohort))
    digest.update(repr((solver, str(task.module), _sources(task.module), type(task.objective).__name__, how)).encode())
    digest.update(repr(cohort.keys("order")).encode())
    if task.data.augment:
        digest.update(repr(cohort.keys("augment")).encode())
    for frozen in (own for own in task.module.parameters() if not own.requires_grad):
        digest.update(_bytes(frozen))
    for client in cohort.ids:
        index = task.shards.of_client(client)
        inputs, targets = task.data.train.inputs[index], task.data.train.targets[index]
        for part in (inputs, targets, task.data.prepare(inputs[:SHOWN].to(task.device), task.dtype)):
            digest.update(_bytes(part))
    digest.update(_bytes(start))
    return digest.hexdigest()


def _sources(module: nn.Module) -> list[str]:
    """The files of a model's own classes, whose printed form does not show what `forward` does."""
    kinds = {type(part) for part in module.modules() if not type(part).__module__.startswith("torch.")}
    return [Path(name).read_text() for name in sorted({kind.forward.__code__.co_filename for kind in kinds})]


def _bytes(tensor: Tensor) -> Any:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _load(path: Path) -> dict[str, Tensor]:
    """Nothing if there is no such file, or none that can be read."""
    try:
        found = load_tensors(path)
    except (FileNotFoundError, SafetensorError):
        return {}
    return {name: found[name] for name in ("theta", "loss", "steps")}


def _save(path: Path, named: dict[str, Tensor]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole(path) as temporary:
        save_tensors(temporary, named)
