"""Gradients for a stack of clients, a row each: by hand for dense chains, by vmap or by a loop; callers cannot tell."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from fedddp.dense import Chain
from fedddp.dropout import Dropout
from fedddp.objective import Objective
from fedddp.params import Layout

NO_MASKS: Mapping[str, Tensor] = {}


class Oracle:
    """Losses and gradients of a module at stacked flat parameters [C, P]."""

    def __init__(self, module: nn.Module, layout: Layout, objective: Objective, vectorise: bool = True) -> None:
        self.module, self.layout, self.objective, self.vectorise = module, layout, objective, vectorise
        self.dropout = Dropout(module)
        self.chain = Chain.of(module, layout, objective) if vectorise else None
        self._stacked: Callable[..., Tensor] = vmap(self._loss)

    def __call__(
        self,
        theta: Tensor,
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor | None = None,
        out: Tensor | None = None,
        masks: Mapping[str, Tensor] = NO_MASKS,
    ) -> tuple[Tensor, Tensor]:
        """grad [c, P] and loss [c] of the (weighted) mean loss over each client's batch [c, B, ...].

        Without masks there is no dropout. A single row is always looped: vmap of one costs more and gives nothing.
        """
        grad = torch.empty_like(theta) if out is None else out
        if self.chain is not None and self.chain.takes(inputs):
            with torch.enable_grad():
                return grad, self.chain(theta, inputs, targets, weights, grad)
        self.dropout.probe(inputs)
        self.module.train(bool(masks) or not self.dropout)
        with torch.enable_grad():
            if self.vectorise and len(theta) > 1:
                return grad, self._by_vmap(theta, inputs, targets, weights, grad, masks)
            return grad, self._by_loop(theta, inputs, targets, weights, grad, masks)

    def _by_vmap(
        self,
        theta: Tensor,
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor | None,
        grad: Tensor,
        masks: Mapping[str, Tensor],
    ) -> Tensor:
        """Forward under vmap, backward by plain autograd into views of the flat gradient."""
        params = {n: v.requires_grad_() for n, v in self.layout.views(theta.detach()).items()}
        extra = () if weights is None else (weights,)
        losses = self._stacked({**params, **masks}, inputs, targets, *extra)
        pieces = torch.autograd.grad(losses.sum(), list(params.values()))
        torch._foreach_copy_(list(self.layout.views(grad).values()), list(pieces))
        return losses.detach()

    def _by_loop(
        self,
        theta: Tensor,
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor | None,
        grad: Tensor,
        masks: Mapping[str, Tensor],
    ) -> Tensor:
        """Plain autograd on a flat leaf, one client after the other, without the padding of short batches."""
        losses = []
        for row in range(len(theta)):
            leaf = theta[row].detach().requires_grad_()
            used = slice(None) if weights is None else slice(int((weights[row] > 0).sum()))
            own = {name: mask[row, used] for name, mask in masks.items()}
            loss = self._loss(self.layout.views(leaf) | own, inputs[row, used], targets[row, used])
            grad[row] = torch.autograd.grad(loss, leaf)[0]
            losses.append(loss.detach())
        return torch.stack(losses)

    def _loss(
        self, params: dict[str, Tensor], inputs: Tensor, targets: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        outputs = functional_call(self.module, params, (inputs,))
        losses = self.objective.loss(outputs, targets)
        return losses.mean() if weights is None else (losses * weights).sum() / weights.sum()
