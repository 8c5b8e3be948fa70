"""From a configuration to the evaluator of a run, with what it compares with."""

import torch
from torch import Tensor

from fedddp.config.loading import Config
from fedddp.core.data import Examples, Source
from fedddp.core.objective import CrossEntropy, NextToken
from fedddp.core.registry import find
from fedddp.core.task import Task
from fedddp.data._settings import Subset
from fedddp.evaluation.by_client import ByClient
from fedddp.evaluation.calibrate import Calibration
from fedddp.evaluation.evaluate import Evaluator
from fedddp.evaluation.parts import Parts
from fedddp.evaluation.personal import Personal
from fedddp.records.table import read_alone
from fedddp.rounds.federate import Federation

OWN = "own"  # evaluation.ood: the strange inputs that the data themselves bring along


def make_evaluator(config: Config, federation: Federation) -> Evaluator:
    wanted, task = config.evaluation, federation.task
    ood = other_data(wanted.ood, task, _root(config.data))
    return Evaluator(federation, wanted.samples, ood, make_by_client(config, federation))


def make_calibration(config: Config, evaluator: Evaluator) -> Calibration | None:
    """What calibrates the final model, where that is wanted."""
    share, task = config.evaluation.calibration, evaluator.federation.task
    if not share:
        return None
    if evaluator.judged_by_own(evaluator.federation.method.init_server(task)):
        raise ValueError(
            f"evaluation.calibration={share}: not for method={config.title('method')}, whose clients have models of "
            "their own; leave it 0"
        )
    if not isinstance(task.objective, CrossEntropy) or isinstance(task.objective, NextToken):
        raise ValueError(f"evaluation.calibration={share}: needs one class for each example; leave it 0")
    seed = config.seed_of("split")
    parts = evaluator.by_client.parts if evaluator.by_client else Parts.of(task, seed)
    return Calibration(evaluator, parts, share, seed)


def make_by_client(config: Config, federation: Federation) -> ByClient | None:
    """Who holds which test examples, where each client is judged on its own."""
    wanted = config.evaluation
    if wanted.clients == "none":
        return None
    parts = Parts.of(federation.task, config.seed_of("split"))
    personal = Personal.of(config.local, wanted.personal, wanted.personal_share) if wanted.personal else None
    return ByClient(federation, parts, personal, read_alone(wanted.alone, parts.digest))


def other_data(name: str, task: Task, root: str) -> Examples | None:
    """The test inputs of the data set `evaluation.ood`, which the model is to recognise as strange."""
    if not name:
        return None
    if not isinstance(task.objective, CrossEntropy) or isinstance(task.objective, NextToken):
        raise ValueError(f"evaluation.ood={name}: needs a classification, where predictions have an entropy")
    inputs = _strange(task) if name == OWN else find("data", name)(root=root).load().test.inputs
    if inputs.shape[1:] != task.data.test.inputs.shape[1:]:
        raise ValueError(
            f"evaluation.ood={name}: its inputs are {tuple(inputs.shape[1:])}, the model is made for "
            f"{tuple(task.data.test.inputs.shape[1:])}; name a data set of the same shape"
        )
    device = task.data.test.inputs.device
    return Examples(inputs.to(device), torch.zeros(len(inputs), dtype=torch.long, device=device))


def _strange(task: Task) -> Tensor:
    if task.data.strange is None:
        raise ValueError(f"evaluation.ood={OWN}: the data have no strange inputs; name another data set")
    return task.data.strange.inputs


def _root(source: Source) -> str:
    """The folder of its files, where it has one: another data set's files are looked for there, too."""
    return source.root if isinstance(source, Subset) else ""
