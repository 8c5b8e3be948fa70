"""A server's own optimisation over what clients hold: Adam on gradients that the clients' terms sum up to.

Several models descend side by side. Where the server holds validation points, each keeps the best of the places it
was looked at; otherwise the last.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fedddp.core.data import IGNORED
from fedddp.core.objective import CrossEntropy
from fedddp.core.record import recorded
from fedddp.core.task import Task
from fedddp.local import adam
from fedddp.methods._layers import outputs


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
    """One step along -slope [M, P], which may be overwritten."""
    own = _own(descent)
    optimiser.step(own.theta, slope, own.moments, optimiser.lr)
    return _look(own, task, validate)


def walk(
    descent: Descent, slope: Callable[[Tensor], Tensor], looks: list[bool], task: Task, optimiser: adam.Solver
) -> Descent:
    """A step along -slope(theta) for each of `looks`, which say whether to look at the validation points after it."""
    own = _own(descent)
    theta, moments = own.theta, own.moments

    def step() -> None:
        optimiser.step(theta, slope(theta), moments, optimiser.lr)

    step_on = recorded(task.record, step, len(looks), [theta, *moments])
    for look in looks:
        step_on()
        own = _look(own, task, look) if look else own
    return own if task.data.validation is not None else own._replace(best=own.theta)


def lowest(before: Descent, after: Descent, value: Tensor) -> Descent:
    """The step from `before`, whose objectives are `value` [M]: each model has to show where its own was lowest."""
    better = -value > before.score
    best = torch.where(better.unsqueeze(1), before.theta, before.best)
    return after._replace(best=best, score=torch.where(better, -value, before.score))


def _own(descent: Descent) -> Descent:
    """A copy that may change."""
    return descent._replace(theta=descent.theta.clone(), moments=adam.Moments(*(m.clone() for m in descent.moments)))


def _look(descent: Descent, task: Task, validate: bool) -> Descent:
    if task.data.validation is None:
        return descent._replace(best=descent.theta)
    if not validate:
        return descent
    score = scores(task, descent.theta)
    better = score > descent.score
    best = torch.where(better.unsqueeze(1), descent.theta, descent.best)
    return descent._replace(best=best, score=torch.where(better, score, descent.score))


def score_of(task: Task, theta: Tensor) -> Tensor:
    """Of one model theta [P]; []."""
    return scores(task, theta.unsqueeze(0))[0]


def scores(task: Task, theta: Tensor) -> Tensor:
    """Accuracy of each model theta [M, P] on the validation points, or minus its loss where there is none; [M].

    Larger is better. The models run one after the other, because a module need not know vmap; all else is done at once
    and nothing is read back.
    """
    held = task.data.validation
    assert held is not None
    inputs = task.data.prepare(held.inputs, task.dtype)
    with torch.no_grad():
        found = torch.stack([outputs(task, row, inputs) for row in theta])
    if isinstance(task.objective, CrossEntropy):
        real = held.targets != IGNORED
        right = (task.objective.probabilities(found).max(-1).indices == held.targets) & real
        return right.flatten(1).sum(1) / real.sum().double()
    losses = task.objective.loss(found.flatten(0, 1), held.targets.repeat(len(theta), *[1] * (held.targets.dim() - 1)))
    return -losses.view(len(theta), -1).mean(1).double()
