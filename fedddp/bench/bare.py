"""The arithmetic alone: the same batched forward, backward and update of a dense chain, and nothing around it.

And of that the matrix products alone: no batch is gathered, nothing activated, no loss taken and nothing stepped.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedddp.bench.contender import Contender
from fedddp.clients.cohort import Cohort
from fedddp.core.task import Task
from fedddp.exchange.group import Exchange
from fedddp.local import adam


class Bare(Contender):
    """Matrix products on [C, B, width] for the cohorts of one rank; batch indices are made beforehand."""

    def __init__(self, task: Task, cohorts: Sequence[Cohort], local: Any, adam: bool, exchange: Exchange) -> None:
        self.task, self.cohorts, self.batch_size, self.lr, self.adam = task, cohorts, local.batch_size, local.lr, adam
        self.exchange, self.theta, self.total = exchange, task.initial, torch.zeros_like(task.initial)
        self.work: list[tuple[Tensor, Tensor, list[int], Tensor]] = []

    def prepare(self, number: int) -> None:
        """The round's batch indices."""
        self.work = []
        for cohort in self.cohorts:
            cohort.round = number
            plan = cohort._schedule(1, self.batch_size)
            valid = torch.arange(plan.table.shape[2]) < torch.tensor(plan.counts).unsqueeze(2)
            self.work.append((plan.table, valid.to(self.task.dtype), plan.working, cohort.num_examples))

    def round(self, number: int) -> None:
        """Σ_k N_k theta_k of this rank."""
        self.total.zero_()
        for table, valid, rows, count in self.work:
            own = self.theta.expand(table.shape[1], -1).clone()
            state = torch.zeros(2, *own.shape) if self.adam else None
            for step, c in enumerate(rows):
                self._step(own[:c], table[step, :c], valid[step, :c], None if state is None else state[:, :c], step + 1)
            self.total += count @ own

    def finish(self) -> None:
        self.theta = self.exchange.add_floats(self.total) / int(self.task.num_examples.sum())

    def _step(self, theta: Tensor, index: Tensor, valid: Tensor, state: Tensor | None, step: int) -> None:
        x, y = self.task.data.gather(index, theta.dtype)
        grad = torch.empty_like(theta)
        self._gradient(theta, grad, x.flatten(2), y, valid / valid.sum(1, keepdim=True))
        if state is None:
            theta.sub_(grad, alpha=self.lr)
            return
        taken = torch.full((len(theta),), float(step - 1))
        adam.Solver().step(theta, grad, adam.Moments(state[0], state[1], taken), self.lr)

    def _gradient(self, theta: Tensor, grad: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> None:
        """Softmax cross-entropy through linear layers with sigmoids between them."""
        params, grads = (list(self.task.layout.views(flat).values()) for flat in (theta, grad))
        values = [x]
        for layer in range(0, len(params), 2):
            value = torch.baddbmm(params[layer + 1].unsqueeze(1), values[-1], params[layer].mT)
            values.append(value.sigmoid_() if layer + 2 < len(params) else value)
        slope = values[-1].softmax(2)
        slope.scatter_add_(2, y.unsqueeze(2), slope.new_full((*y.shape, 1), -1.0))
        slope *= weight.unsqueeze(2)
        for layer in range(len(params) - 2, -1, -2):
            value = values[layer // 2]
            grads[layer].baddbmm_(slope.mT, value, beta=0)
            torch.sum(slope, dim=1, out=grads[layer + 1])
            if layer:
                slope = torch.ops.aten.sigmoid_backward(torch.bmm(slope, params[layer]), value)


class Products(Bare):
    """The products of every step, on one batch that is there; what they are of does not matter to their time."""

    def round(self, number: int) -> None:
        width, size = max((table.shape[1:] for table, *_ in self.work), default=(0, 0))
        inputs = torch.rand(width, size, self.task.layout.shapes[0][1])
        for table, _, rows, _ in self.work:
            own = self.theta.expand(table.shape[1], -1).clone()
            grad = torch.empty_like(own)
            for c in rows:
                self._products(own[:c], grad[:c], inputs[:c, : table.shape[2]])

    def finish(self) -> None:
        """It learns nothing."""

    def _products(self, theta: Tensor, grad: Tensor, x: Tensor) -> None:
        weights, grads = (list(self.task.layout.views(flat).values())[::2] for flat in (theta, grad))
        values = [x]
        for weight in weights:
            values.append(torch.bmm(values[-1], weight.mT))
        slope = values.pop()
        for layer in range(len(weights) - 1, -1, -1):
            grads[layer].baddbmm_(slope.mT, values[layer], beta=0)
            if layer:
                slope = torch.bmm(slope, weights[layer])
