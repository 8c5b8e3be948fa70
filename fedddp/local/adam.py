"""Adam (Kingma & Ba 2015) and, with decoupled weight decay, AdamW."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from fedddp.local import Point, check
from fedddp.task import Task


class Moments(NamedTuple):
    first: Tensor  # [C, P]
    second: Tensor  # [C, P]
    taken: Tensor  # [C] steps so far: clients of different sizes are at different ones


@dataclass
class Solver(Point):
    lr: float = 0.001
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0
    decoupled: bool = False  # AdamW: decay the weights themselves rather than through the gradient

    def __post_init__(self) -> None:
        super().__post_init__()
        check("local.beta1", self.beta1, 0 <= self.beta1 < 1, "in [0, 1)")
        check("local.beta2", self.beta2, 0 <= self.beta2 < 1, "in [0, 1)")

    def blank(self, rows: int, task: Task) -> Moments:
        zeros = torch.zeros(2, rows, task.layout.numel, dtype=task.dtype, device=task.device)
        return Moments(zeros[0], zeros[1], zeros.new_zeros(rows))

    def step(self, theta: Tensor, grad: Tensor, state: Moments, lr: float) -> None:
        """m <- β1 m + (1-β1) g;  v <- β2 v + (1-β2) g²;  theta <- theta - lr·m̂/(√v̂ + eps)."""
        if self.weight_decay and self.decoupled:
            theta.mul_(1 - lr * self.weight_decay)
        elif self.weight_decay:
            grad.add_(theta, alpha=self.weight_decay)
        state.taken.add_(1)
        state.first.lerp_(grad, 1 - self.beta1)
        state.second.mul_(self.beta2).addcmul_(grad, grad, value=1 - self.beta2)
        step_size = (lr / (1 - self.beta1**state.taken)).unsqueeze(1)  # [c, 1]
        correction = (1 - self.beta2**state.taken).rsqrt().unsqueeze(1)
        root = torch.sqrt(state.second, out=grad).mul_(correction).add_(self.eps)
        theta.sub_(torch.div(state.first, root, out=grad).mul_(step_size))
