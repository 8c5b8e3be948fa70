"""Blocks whose activations are computed twice instead of kept: local.recompute.

Chen et al. 2016: of n blocks alike, a step keeps the inputs of each and the activations of one, for another forward
pass; the same operations on the same numbers, so the same bits. A block is a layer with layers of its own in an
nn.ModuleList or nn.Sequential: those of a transformer, the residual ones of a ResNet.

torch computes a block again in the backward pass, when functional_call has put the module's own parameters back: a
block therefore remembers those that it was called with, masks of dropout and frozen buffers among them.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint


def blocks(module: nn.Module) -> Iterator[nn.Module]:
    """The outermost ones, in the module's order."""
    listed = isinstance(module, nn.ModuleList | nn.Sequential)
    for child in module.children():
        if listed and any(child.children()):
            yield child
        else:
            yield from blocks(child)


class Recompute:
    """A context in which the module's blocks keep nothing but their inputs; outside it they are as they were."""

    def __init__(self, module: nn.Module, wanted: bool) -> None:
        self.on = False
        found = list(blocks(module)) if wanted else []
        if wanted and not found:
            raise ValueError(
                "local.recompute=true: the model has no blocks, layers of layers in an nn.ModuleList or nn.Sequential; "
                "leave it false, and choose local.micro_batch for less memory"
            )
        for block in found:
            block.forward = Again(self, block)

    def __enter__(self) -> None:
        self.on = True

    def __exit__(self, *_: object) -> None:
        self.on = False


class Again:
    """A block's forward pass, which is made once more when its gradient is wanted."""

    def __init__(self, context: Recompute, block: nn.Module) -> None:
        self.context, self.block, self.forward, self.inside = context, block, block.forward, False

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        if self.inside or not self.context.on:
            return self.forward(*inputs, **named)
        held = {**dict(self.block.named_parameters()), **dict(self.block.named_buffers())}
        return checkpoint(self._with, held, named, *inputs, use_reentrant=False, preserve_rng_state=False)

    def _with(self, held: Mapping[str, Tensor], named: Mapping[str, Any], *inputs: Any) -> Any:
        self.inside = True
        try:
            return functional_call(self.block, dict(held), inputs, dict(named))
        finally:
            self.inside = False
