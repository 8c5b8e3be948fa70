"""What a data source is: a class with its settings as annotated fields and `load() -> Dataset`.

    class Source(data.Source):
        file: str = ""                 # an annotated field is a setting: data.file
        def load(self):
            return Dataset(train=Examples(inputs, targets), test=Examples(...), classes=10, scale=1 / 255)

Examples stay as their publisher stores them (uint8 pixels, integer tokens, floats) and become model inputs, by
x · scale + shift, only when a batch is gathered, so a rank never holds a float copy of the whole set. All tensors are
on the CPU:

    inputs    [N, ...]               any numbers; integer tokens [N, T] with tokens=True, so that they stay integers
    targets   int64 [N]              class numbers 0..classes - 1
              int64 [N, T]           the next token at each position, IGNORED where there is none; classes: of tokens
              0 or 1 [N, L]          for each of several labels; classes=L
              float [N] or [N, D]    numbers; classes=0
    inputs    [N, names, ...]        several inputs side by side, handed to the model by their names: named=("ids", ...)
    clients   int64 [N]              whose each example is, where the data says so: for the split `natural`

`load` is called on every rank and must give the same examples in the same order on all of them, so what it draws at
random it draws from a seed of its own. Sources of which a share may be used derive from `Subset`, `Images` or `Table`
in fedddp/data/_settings.py.
"""

import os
from abc import abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from fedddp.core import kernels
from fedddp.core.contract import Contract

IGNORED = -100  # the target of a position that is only padding; torch's own convention
MASK = "attention_mask"  # the named input that is 1 where another one's position is no padding
STEP = 8  # a batch's positions are cut to a multiple of it, so that steps have few shapes


@dataclass(frozen=True)
class Examples:
    """Inputs and targets side by side."""

    inputs: Tensor  # [N, ...] as stored
    targets: Tensor  # [N], [N, T] or [N, labels]
    clients: Tensor | None = None  # [N] natural client of each example, where the data has one

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, index: Tensor) -> "Examples":
        clients = None if self.clients is None else self.clients[index]
        return Examples(self.inputs[index], self.targets[index], clients)

    def to(self, device: torch.device) -> "Examples":
        """On the device, through pinned memory where there is such."""

        def move(part: Tensor) -> Tensor:
            pinned = part.pin_memory() if device.type == "cuda" and part.is_cpu else part
            return pinned.to(device, non_blocking=True)

        return Examples(move(self.inputs), move(self.targets), self.clients)

    @property
    def nbytes(self) -> int:
        """Of inputs and targets."""
        return self.inputs.numel() * self.inputs.itemsize + self.targets.numel() * self.targets.itemsize


class Held(NamedTuple):
    """Training examples that a device holds."""

    examples: Examples
    row: Tensor  # [N] on the host: where each of all training examples is among them, -1 for one that is not


@dataclass(frozen=True)
class Dataset:
    """Training and test examples, and how a stored input becomes a model input: x · scale + shift.

    `train` is always on the host; what a device works on comes by fedddp/clients/feed.py.
    """

    train: Examples
    test: Examples
    classes: int  # number of classes; 0 for regression
    scale: Tensor | float = 1.0  # broadcast against one input
    shift: Tensor | float = 0.0
    validation: Examples | None = None  # held out at the server
    augment: bool = False  # whether training pictures are cut anew in every step (fedddp/clients/augment.py)
    tokens: bool = False  # integer inputs that stay integers
    label_names: tuple[str, ...] = ()
    client_names: tuple[str, ...] = ()  # of the natural clients, by their number
    named: tuple[str, ...] = ()  # what the model calls its inputs, which lie side by side [N, names, ...]
    strange: Examples | None = None  # inputs of none of the classes, whose predictions should be unsure
    bag: int = 0  # above 0: stored word numbers 1..bag become a bag of words; 0 is padding, bag + 1 an unknown word
    held: Held | None = None  # what a device holds of the training examples
    streamed: bool = False  # whether a device is sent every batch instead

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Of one input as the model sees it."""
        return (self.bag,) if self.bag else tuple(self.train.inputs.shape[1:])

    def prepare(self, stored: Tensor, dtype: torch.dtype) -> Tensor:
        """Stored inputs as the model sees them."""
        if self.tokens:
            return self._without_padding(stored.long())
        if self.bag:
            return bag_of_words(stored.long(), self.bag, dtype)
        inputs = stored.to(dtype, copy=True)
        if isinstance(self.scale, Tensor):
            inputs *= self.scale.to(dtype)
        elif self.scale != 1.0:
            inputs *= self.scale
        if isinstance(self.shift, Tensor):
            inputs += self.shift.to(dtype)
        elif self.shift != 0.0:
            inputs += self.shift
        return inputs

    def lengths(self, stored: Tensor) -> Tensor | None:
        """Positions [...] up to an input's last real one, where a mask tells them."""
        if MASK not in self.named:
            return None
        real = stored.select(-2, self.named.index(MASK)) != 0
        return (real * torch.arange(1, real.shape[-1] + 1, device=real.device)).amax(-1)

    def _without_padding(self, stored: Tensor) -> Tensor:
        """Inputs [..., names, T] up to the last position that is real in any of them."""
        lengths = self.lengths(stored)
        if lengths is None or not lengths.numel():
            return stored
        return stored[..., : -(-max(1, int(lengths.max())) // STEP) * STEP]

    def gather(
        self, index: Tensor, dtype: torch.dtype, space: Tensor | None = None, source: Examples | None = None
    ) -> tuple[Tensor, Tensor]:
        """The examples index [...] of `source` (default: the training set) as model inputs [..., *input] and targets.

        Whole rows are copied, which is many times faster than general indexing, and where that can be done at once
        into the first rows of `space`, if it is given.
        """
        source, flat = source or self.train, index.reshape(-1)
        targets = source.targets.index_select(0, flat).view(*index.shape, *source.targets.shape[1:])
        stored = source.inputs
        if self._bytes(stored, dtype):
            shape = (*index.shape, *stored.shape[1:])
            inputs = torch.empty(shape, device=stored.device) if space is None else space[: index.shape[0]]
            count = flat.shape[0]
            kernels.call(
                "gather",
                count,
                inputs.numel() // max(count, 1),
                flat,
                stored,
                float(self.scale),
                float(self.shift),
                inputs,
            )
            return inputs, targets
        return self.prepare(stored.index_select(0, flat).view(*index.shape, *stored.shape[1:]), dtype), targets

    def _bytes(self, stored: Tensor, dtype: torch.dtype) -> bool:
        """Whether inputs are bytes that one scale and one shift turn into float32: there is a kernel."""
        plain = stored.dtype == torch.uint8 and stored.is_contiguous()
        one = not isinstance(self.scale, Tensor) and not isinstance(self.shift, Tensor)
        special = self.tokens or self.bag > 0 or dtype != torch.float32
        return plain and one and not special and kernels.has(stored.device.type)

    def to(self, device: torch.device) -> "Dataset":
        """What every rank needs on its device: all but the training and the test examples."""
        if device.type == "cpu":
            return self
        scale = self.scale.to(device) if isinstance(self.scale, Tensor) else self.scale
        shift = self.shift.to(device) if isinstance(self.shift, Tensor) else self.shift
        held = None if self.validation is None else self.validation.to(device)
        return replace(self, validation=held, scale=scale, shift=shift)

    def placed(self, index: Tensor, device: torch.device, place: str) -> "Dataset":
        """With the training examples `index` and the test set on the device; with place=host, neither."""
        if device.type == "cpu":
            return self
        if place == "host":
            return replace(self, streamed=True)
        return replace(self, held=self._hold(index, device), test=self.test.to(device))

    def near(self, index: Tensor, device: torch.device) -> tuple[Examples, Tensor]:
        """Examples on the device among which are the training examples index [...], and where."""
        if device.type == "cpu":
            return self.train, index
        if self.held is not None:
            rows = self.held.row[index]
            if bool((rows >= 0).all()):
                return self.held.examples, rows
        brought = self._hold(index, device)
        return brought.examples, brought.row[index]

    def _hold(self, index: Tensor, device: torch.device) -> Held:
        wanted = torch.zeros(len(self.train), dtype=torch.bool)
        wanted[index.reshape(-1)] = True
        row = torch.where(wanted, wanted.cumsum(0) - 1, -1)
        return Held(self.train.take(wanted.nonzero().squeeze(1)).to(device), row)


class Source(Contract, extends=True):
    @abstractmethod
    def load(self) -> Dataset:
        """The examples to train and to test on, the same ones in the same order on every rank."""


def bag_of_words(words: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """How often each known word occurs, as a share of all words, the unknown ones too; [..., T] -> [..., size]."""
    counts = torch.zeros(*words.shape[:-1], size + 2, dtype=dtype, device=words.device)
    counts.scatter_add_(-1, words, torch.ones((), dtype=dtype, device=words.device).expand(words.shape))
    counts[..., 0] = 0  # padding
    return counts[..., 1 : size + 1] / counts.sum(-1, keepdim=True).clamp_min(1)


def root(setting: str) -> Path:
    """The folder of data files: `data.root`, or FEDDDP_DATA, or ./data."""
    return Path(setting or os.environ.get("FEDDDP_DATA") or "data").expanduser()
