"""Gradients for several clients, a row each; by hand, by vmap or by a loop: callers cannot tell.

By hand go dense chains, and stacks of convolutions, whose layers are one of all clients' in groups.
"""

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import grad_and_value, vmap

from fedddp.clients.chain import Chain, shorten
from fedddp.clients.dropout import Dropout
from fedddp.clients.recompute import Recompute
from fedddp.clients.stack import Stack, pixels_last
from fedddp.core.model import call
from fedddp.core.objective import Objective
from fedddp.core.params import Layout

NO_MASKS: Mapping[str, Tensor] = {}


class Oracle:
    """Losses and gradients of a module at stacked flat parameters [C, P]."""

    def __init__(
        self,
        module: nn.Module,
        layout: Layout,
        objective: Objective,
        vectorise: bool = True,
        micro: int = 0,
        recompute: bool = False,
    ) -> None:
        """With either of the last two, clients are computed one after the other.

        `micro`: most examples of a client that are computed together; 0: all. `recompute`: see clients/recompute.py.
        """
        self.module, self.layout, self.objective = module, layout, objective
        self.vectorise, self.micro = vectorise and not micro and not recompute, micro
        self.recompute = Recompute(module, recompute)
        self.dropout = Dropout(module)
        self.chain = Chain.of(module, layout, objective) if self.vectorise else None
        self.stack = Stack.of(module, layout, objective) if self.vectorise else None
        self.pixels_last = PixelsLast(module)
        self._stacked: Callable[..., Tensor] = vmap(self._loss)

    def __call__(
        self,
        theta: Tensor,
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor | None = None,
        counts: Sequence[int] | None = None,
        out: Tensor | None = None,
        masks: Mapping[str, Tensor] = NO_MASKS,
        buffers: Tensor | None = None,
        learn: bool = True,
    ) -> tuple[Tensor, Tensor]:
        """grad [c, P] and loss [c] of the (weighted) mean loss over each client's batch [c, B, ...].

        Without masks there is no dropout. A single row is always looped: vmap of one costs more and gives nothing.
        `counts` are the real examples of a batch with weights, for those who compute without its padding.
        `buffers` [c, S] are each client's own; layers move them in place, unless they are not to `learn`.
        """
        grad = torch.empty_like(theta) if out is None else out
        if self.chain is not None and self.chain.takes(inputs):
            with torch.enable_grad():
                return grad, self.chain(theta, inputs, targets, weights, grad)
        if self.stack is not None:
            return grad, self.stack(theta, *_unpadded(inputs, targets, weights, counts, masks), grad)
        self.dropout.probe(inputs)
        self._train(learn and (bool(masks) or not self.dropout))
        state = {} if buffers is None else self.layout.of_buffers(buffers)
        padded = weights is not None and buffers is not None  # statistics would be of the padding, too
        with torch.enable_grad():
            if self.vectorise and len(theta) > 1 and not padded:
                return grad, self._by_vmap(theta, inputs, targets, weights, grad, masks, state)
            with self.pixels_last, self.recompute:
                return grad, self._by_loop(theta, inputs, targets, weights, counts, grad, masks, state)

    def clipped(
        self,
        theta: Tensor,
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor | None,
        clip: float,
        factor: Tensor | float = 1.0,
        out: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """`factor` [c, 1] times each client's *sum* [c, P] of its examples' gradients, none longer than `clip`.

        And its mean loss [c].
        """
        grad = torch.empty_like(theta) if out is None else out
        if self.chain is not None and self.chain.takes(inputs):
            with torch.enable_grad():
                return grad, self.chain.clipped(theta, inputs, targets, weights, clip, factor, grad)
        if self.dropout:
            raise ValueError("privacy.level=example: clipped gradients are written for models without dropout")
        self._train(True)
        losses = []
        for row, point in enumerate(theta):
            params = self.layout.views(point.detach())
            pieces, each = self._by_example(params, inputs[row], targets[row])
            flat = torch.cat([piece.flatten(1) for piece in pieces.values()], 1)
            real = torch.ones_like(each) if weights is None else weights[row]
            grad[row] = (real * shorten(flat.square().sum(1), clip)) @ flat
            losses.append((each * real).sum() / real.sum().clamp_min(1))
        return grad.mul_(factor), torch.stack(losses)

    def lower_clipped(
        self, theta: Tensor, inputs: Tensor, targets: Tensor, weights: Tensor | None, clip: float, factor: Tensor
    ) -> Tensor | None:
        """The loss [c] at theta, which goes down by what `clipped` is, in place; None where that must be written."""
        if self.chain is None or not self.chain.takes(inputs):
            return None
        with torch.enable_grad():
            return self.chain.clipped(theta, inputs, targets, weights, clip, factor, None)

    @property
    def _by_example(self) -> Callable[..., tuple[dict[str, Tensor], Tensor]]:
        """Gradients and losses of single examples."""

        def one(params: dict[str, Tensor], inputs: Tensor, target: Tensor) -> Tensor:
            return self._loss(params, inputs.unsqueeze(0), target.unsqueeze(0))

        return vmap(grad_and_value(one), in_dims=(None, 0, 0))

    def lowers(self, inputs: Tensor) -> bool:
        """Whether `lower` takes such a batch."""
        return self.stack is not None or (self.chain is not None and self.chain.takes(inputs))

    def lower(
        self,
        theta: Tensor,
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor | None,
        counts: Sequence[int] | None,
        lr: float,
        masks: Mapping[str, Tensor] = NO_MASKS,
    ) -> Tensor:
        """The loss [c] at theta [c, P], which goes down by lr times its gradient, in place, without one being written.

        Of a model and a batch that allow it (`lowers`).
        """
        if self.stack is not None:
            return self.stack.lower(theta, *_unpadded(inputs, targets, weights, counts, masks), lr)
        assert self.chain is not None
        with torch.enable_grad():
            return self.chain.lower(theta, inputs, targets, weights, lr)

    def _by_vmap(
        self,
        theta: Tensor,
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor | None,
        grad: Tensor,
        masks: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
    ) -> Tensor:
        """Forward under vmap, backward by plain autograd into views of the flat gradient."""
        params = {n: v.requires_grad_() for n, v in self.layout.views(theta.detach()).items()}
        extra = () if weights is None else (weights,)
        # vmap would move a copy of what is strided
        moved = {name: buffer.contiguous().clone() for name, buffer in state.items()}
        losses = self._stacked({**params, **masks, **moved}, inputs, targets, *extra)
        for name, buffer in state.items():
            buffer.copy_(moved[name])
        pieces = torch.autograd.grad(losses.sum(), list(params.values()))
        torch._foreach_copy_(list(self.layout.views(grad).values()), list(pieces))
        return losses.detach()

    def _by_loop(
        self,
        theta: Tensor,
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor | None,
        counts: Sequence[int] | None,
        grad: Tensor,
        masks: Mapping[str, Tensor],
        state: Mapping[str, Tensor],
    ) -> Tensor:
        """Plain autograd, one client after the other; on a CPU without the padding of short batches.

        Elsewhere they keep it, with weight 0: so that a step has few shapes, and nobody need know how long it is.
        """
        losses = []
        if not theta.is_cpu and not state and not self.micro:
            counts = None
        elif counts is None and weights is not None:
            counts = (weights > 0).sum(1).tolist()
        for row in range(len(theta)):
            params = {n: v.requires_grad_() for n, v in self.layout.views(theta[row].detach()).items()}
            count = inputs.shape[1] if counts is None else counts[row]
            by = None if counts is not None or weights is None else weights[row]
            into = list(self.layout.views(grad[row]).values())
            total = theta.new_zeros(())
            for used in self._pieces(count):
                own = {name: mask[row, used] for name, mask in masks.items()}
                # views of one vector would share a version, and autograd a layer's with every other's
                moved = {name: buffer[row].clone() for name, buffer in state.items()}
                own |= moved
                loss = self._loss(params | own, inputs[row, used], targets[row, used], by)
                pieces = list(torch.autograd.grad(loss, list(params.values())))
                for name, buffer in state.items():
                    buffer[row].copy_(moved[name])
                share = (used.stop - used.start) / count
                if share == 1:
                    total = loss.detach()
                    torch._foreach_copy_(into, pieces)
                    break
                if used.start == 0:
                    grad[row].zero_()
                torch._foreach_add_(into, pieces, alpha=share)
                total += share * loss.detach()
            losses.append(total)
        return torch.stack(losses)

    def _pieces(self, count: int) -> list[slice]:
        """Examples that are computed together, of a client's `count`."""
        step = self.micro or count
        return [slice(start, min(start + step, count)) for start in range(0, count, step)]

    def _train(self, wanted: bool) -> None:
        """The module's mode; walking through its layers is dear, so only when it changes."""
        if self.module.training != wanted:
            self.module.train(wanted)

    def _loss(
        self, params: dict[str, Tensor], inputs: Tensor, targets: Tensor, weights: Tensor | None = None
    ) -> Tensor:
        outputs = call(self.module, params, inputs)
        losses = self.objective.loss(outputs, targets)
        return losses.mean() if weights is None else (losses * weights).sum() / weights.sum()


def _unpadded(
    inputs: Tensor, targets: Tensor, weights: Tensor | None, counts: Sequence[int] | None, masks: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor, Tensor | None, Mapping[str, Tensor]]:
    """A batch [c, B, ...] and its masks: a single client's on a CPU without the padding of a short one."""
    if weights is None or not inputs.is_cpu or len(inputs) > 1:
        return inputs, targets, weights, masks
    used = counts[0] if counts is not None else int((weights > 0).sum())
    return inputs[:, :used], targets[:, :used], None, {name: mask[:, :used] for name, mask in masks.items()}


class PixelsLast:
    """A context in which images are laid out with their channels side by side before the first convolution.

    A processor's convolutions and pools are quickest so (LeNet's step by a quarter), and what follows keeps to it.
    vmap does not know such layouts, so loops alone enter it.
    """

    def __init__(self, module: nn.Module) -> None:
        self.on = False
        first = next((m for m in module.modules() if isinstance(m, nn.Conv2d)), None)
        if first is not None:
            first.register_forward_pre_hook(lambda _, inputs: (pixels_last(inputs[0]),) if self.on else None)

    def __enter__(self) -> None:
        self.on = True

    def __exit__(self, *_: object) -> None:
        self.on = False
