"""Gradients whose products are computed in bfloat16: federation.autocast=bf16.

Parameters, losses, gradients and everything the server sees keep their own precision; what lies between is rounded, so
results change, but not from rank to rank. A bfloat16 has 8 bits of mantissa: products err by up to 0.4 %. The run says
so when it starts, its summary's `precision` names it, and its hash is another's. federation.tf32, which lets a GPU's
products of float32 keep 10 bits (errors up to 0.1 %), is said in the same places; it is off unless asked for.
"""

import torch
from torch import Tensor, nn

from fedddp.clients.oracle import Oracle
from fedddp.core.model import call
from fedddp.core.objective import Objective
from fedddp.core.params import Layout


class Autocast(Oracle):
    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        objective: Objective,
        vectorise: bool = True,
        micro: int = 0,
        recompute: bool = False,
    ) -> None:
        super().__init__(module, layout, objective, vectorise, micro, recompute)
        self.chain = self.stack = None  # their products write float32 views

    def _loss(
        self, params: dict[str, Tensor], inputs: Tensor, targets: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        with torch.autocast(targets.device.type, torch.bfloat16, cache_enabled=False):
            outputs = call(self.module, params, inputs)
        losses = self.objective.loss(outputs.float(), targets)
        return losses.mean() if weights is None else (losses * weights).sum() / weights.sum()
