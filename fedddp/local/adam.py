"""Adam (Kingma & Ba 2015) and, with decoupled weight decay, AdamW."""

from typing import NamedTuple

import torch
from torch import Tensor

from fedddp.core import kernels
from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.rounds.iterative import Descent


class Moments(NamedTuple):
    first: Tensor  # [C, P] running mean of gradients
    second: Tensor  # [C, P] and of their squares
    taken: Tensor  # [C] steps so far: clients of different sizes are at different ones


class Solver(Descent):
    lr: float = 0.001
    beta1: float = 0.9  # how slowly the mean of the gradients forgets, in [0, 1)
    beta2: float = 0.999  # how slowly the mean of their squares forgets, in [0, 1)
    eps: float = 1e-8  # added to the root of the squares before dividing by it, above 0
    weight_decay: float = 0.0  # weight of ½|theta|² in the mean loss, at least 0
    decoupled: bool = False  # AdamW: decay the weights themselves rather than through the gradient

    def __post_init__(self) -> None:
        super().__post_init__()
        check("local.beta1", self.beta1, 0 <= self.beta1 < 1, "in [0, 1)")
        check("local.beta2", self.beta2, 0 <= self.beta2 < 1, "in [0, 1)")
        check("local.eps", self.eps, self.eps > 0, "above 0")
        check("local.weight_decay", self.weight_decay, self.weight_decay >= 0, "at least 0")

    def blank(self, rows: int, task: Task) -> Moments:
        zeros = torch.zeros(2, rows, task.layout.numel, dtype=task.dtype, device=task.device)
        return Moments(zeros[0], zeros[1], torch.zeros(rows, device=task.device))

    def step(self, theta: Tensor, grad: Tensor, state: Moments, lr: float | Tensor) -> None:
        """m <- β1 m + (1-β1) g;  v <- β2 v + (1-β2) g²;  theta <- theta - lr·m̂/(√v̂ + eps).

        torch's fused kernel does it in one pass over memory; each client is a tensor with its own step counter.
        """
        state.taken.add_(1)
        if isinstance(lr, Tensor):
            settings = (self.beta1, self.beta2, self.weight_decay, self.eps, int(self.decoupled))
            kernels.call("adam_step", *theta.shape, theta, grad, *state, lr, *settings)
            return
        kernel = torch._fused_adamw_ if self.decoupled else torch._fused_adam_
        kernel(
            theta.unbind(),
            grad.unbind(),
            state.first.unbind(),
            state.second.unbind(),
            [],
            state.taken.unbind(),
            lr=lr,
            beta1=self.beta1,
            beta2=self.beta2,
            weight_decay=self.weight_decay,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )
