"""What a model is: a class with its settings as annotated fields and `build()`, which makes the module.

    class Model(model.Model):
        hidden: int = 100              # an annotated field is a setting: model.hidden
        def build(self, shape, outputs):
            return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), self.hidden), nn.ReLU(), ...)

Its parameters start as the module draws them, from the model's own seed. Batch normalisation is refused: its running
statistics have no federated meaning.
"""

from abc import abstractmethod

from torch import nn

from fedddp.core.contract import Contract


class Model(Contract, extends=True):
    @abstractmethod
    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """A module from inputs [B, *shape] to [B, outputs], or [B, T, outputs] where every position has a next token.

        `shape` is that of one input as the model sees it: [H, W] or [C, H, W] of images, [F] of a table's row or a bag
        of words, [T] of tokens. `outputs` is the number of classes, labels or different tokens, whose logits are wanted
        (two classes have two, but one with model.loss=binary); for regression, of a target's numbers, mostly 1.
        """
