"""What a model is: a class with its settings as annotated fields and `build()`, which makes the module.

    class Model(model.Model):
        hidden: int = 100              # an annotated field is a setting: model.hidden
        def build(self, shape, outputs):
            return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), self.hidden), nn.ReLU(), ...)

Its parameters start as the module draws them, from the model's own seed; those that require no gradient stay so, and
are not sent. Running statistics (BatchNorm) are refused unless model.buffers says what becomes of them.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from fedddp.core.contract import Contract


class Model(Contract, extends=True):
    @abstractmethod
    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """A module from inputs [B, *shape] to [B, outputs], or [B, T, outputs] where every position has a next token.

        `shape` is that of one input as the model sees it: [H, W] or [C, H, W] of images, [F] of a table's row or a bag
        of words, [T] of tokens. `outputs` is the number of classes, labels or different tokens, whose logits are wanted
        (two classes have two, but one with model.loss=binary); for regression, of a target's numbers, mostly 1.
        """


class Named:
    """A hook that hands a module several inputs, which lie side by side [B, names, ...], by their names."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], given: dict[str, Any]) -> Any:
        if len(args) != 1 or given:  # somebody names them already
            return None
        return (), dict(zip(self.names, args[0].unbind(1), strict=True))


def call(module: nn.Module, named: Mapping[str, Tensor], inputs: Tensor) -> Tensor:
    """The module's outputs with these parameters and buffers in place of its own; of a library's output, the logits."""
    found = functional_call(module, dict(named), (inputs,))
    return found["logits"] if isinstance(found, Mapping) and "logits" in found else found
