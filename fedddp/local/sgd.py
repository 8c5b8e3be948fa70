"""Stochastic gradient descent with momentum, Nesterov's look-ahead and weight decay."""

from typing import NamedTuple

import torch
from torch import Tensor

from fedddp.core import kernels
from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.rounds.iterative import Descent
from fedddp.rounds.solver import Nothing


class Momentum(NamedTuple):
    velocity: Tensor  # [C, P] momentum's running sum


class Solver(Descent):
    momentum: float = 0.0  # factor of the last step's direction that is added to a gradient, in [0, 1)
    nesterov: bool = False  # whether to look ahead along the momentum (Nesterov)
    weight_decay: float = 0.0  # weight of ½|theta|² in the mean loss, at least 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check("local.momentum", self.momentum, 0 <= self.momentum < 1, "in [0, 1)")
        check("local.weight_decay", self.weight_decay, self.weight_decay >= 0, "at least 0")
        check(
            "local.nesterov",
            self.nesterov,
            self.momentum > 0 or not self.nesterov,
            "used with local.momentum > 0",
        )

    def blank(self, rows: int, task: Task) -> Momentum | Nothing:
        if not self.momentum:
            return Nothing()
        return Momentum(torch.zeros(rows, task.layout.numel, dtype=task.dtype, device=task.device))

    def plain(self) -> bool:
        """But for what a derived class makes of a step."""
        return type(self).step is Solver.step and not self.momentum and not self.weight_decay

    def step(self, theta: Tensor, grad: Tensor, state: Momentum | Nothing, lr: float | Tensor) -> None:
        """velocity <- momentum·velocity + grad;  theta <- theta - lr·velocity, in one pass over memory."""
        velocity = [state.velocity] if isinstance(state, Momentum) else []
        if isinstance(lr, Tensor):
            settings = (self.momentum, int(self.nesterov), self.weight_decay)
            kernels.call("sgd_step", *theta.shape, theta, grad, *(velocity or [grad]), lr, *settings)
            return
        torch._fused_sgd_(
            [theta],
            [grad],
            velocity,
            weight_decay=self.weight_decay,
            momentum=self.momentum,
            lr=lr,
            dampening=0.0,
            nesterov=self.nesterov,
            maximize=False,
            is_first_step=False,
        )
