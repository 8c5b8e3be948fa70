"""A server's own optimisation over what clients hold: Adam on gradients that the clients' terms sum up to.

Several models descend side by side. Where the server holds validation points, each keeps the best of the places it
was looked at; otherwise the last.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from fedddp.core.task import Task
from fedddp.local import adam


class Descent(NamedTuple):
    theta: Tensor  # [M, P] where each model is
    moments: adam.Moments
    best: Tensor  # [M, P] what each has to show
    score: Tensor  # [M] of the best, on the validation points; the least number before anybody looked


def begin(start: Tensor, task: Task, optimiser: adam.Solver, validate: bool) -> Descent:
    """Descents from start [M, P]; the start itself is a candidate."""
    unseen = torch.full((len(start),), torch.finfo(torch.float64).min, dtype=torch.float64, device=start.device)
    return _look(Descent(start, optimiser.blank(len(start), task), start, unseen), task, validate)


def advance(descent: Descent, slope: Tensor, task: Task, optimiser: adam.Solver, validate: bool) -> Descent:
    """One step along -slope [M, P]."""
    theta, moments = descent.theta.clone(), adam.Moments(*(leaf.clone() for leaf in descent.moments))
    optimiser.step(theta, slope.clone(), moments, optimiser.lr)
    return _look(descent._replace(theta=theta, moments=moments), task, validate)


def _look(descent: Descent, task: Task, validate: bool) -> Descent:
    if task.data.validation is None:
        return descent._replace(best=descent.theta)
    if not validate:
        return descent
    score = torch.stack([score_of(task, theta) for theta in descent.theta])
    better = score > descent.score
    best = torch.where(better.unsqueeze(1), descent.theta, descent.best)
    return descent._replace(best=best, score=torch.where(better, score, descent.score))


def score_of(task: Task, theta: Tensor) -> Tensor:
    """Accuracy on the validation points, or minus the loss where there is none; larger is better."""
    held = task.data.validation
    assert held is not None
    with torch.no_grad():
        outputs = task.outputs(theta, held.inputs)
    metrics = task.objective.metrics(task.objective.tally(task.objective.probabilities(outputs), held.targets))
    score = metrics.get("accuracy", -float(task.objective.loss(outputs, held.targets).mean()))
    return torch.tensor(score, dtype=torch.float64, device=theta.device)
