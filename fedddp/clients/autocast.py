"""Gradients whose products are computed in bfloat16: federation.autocast=bf16.

Parameters, losses, gradients and everything the server sees keep their own precision; what lies between is rounded, so
results change, but not from rank to rank.
"""

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedddp.clients.oracle import Oracle
from fedddp.core.objective import Objective
from fedddp.core.params import Layout


class Autocast(Oracle):
    def __init__(self, module: nn.Module, layout: Layout, objective: Objective, vectorise: bool = True) -> None:
        super().__init__(module, layout, objective, vectorise)
        self.chain = None  # its products write float32 views

    def _loss(
        self, params: dict[str, Tensor], inputs: Tensor, targets: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        with torch.autocast(targets.device.type, torch.bfloat16, cache_enabled=False):
            outputs = functional_call(self.module, params, (inputs,))
        losses = self.objective.loss(outputs.float(), targets)
        return losses.mean() if weights is None else (losses * weights).sum() / weights.sum()
