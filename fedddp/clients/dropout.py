"""Dropout with masks from outside, so that every client draws its own, whoever is computed beside it.

torch's dropout draws from one global generator: vmap refuses it, and in a loop a client's masks would depend on
those before it. Here each layer multiplies by a mask that is handed in with the parameters: whether a number is kept
is a hash of the client's own key ("dropout LAYER", round, client), the number of the gradient and the number's place in
the batch, so that it is the same in any company and on any device.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedddp.clients.noise import words
from fedddp.core import kernels

WORDS = 1 << 32  # of 32 bits
TOGETHER = {nn.Dropout: 0, nn.Dropout1d: 1, nn.Dropout2d: 2, nn.Dropout3d: 3}  # last axes that share one number


class Masked(nn.Module):
    """Stands where a dropout layer stood: x · mask in training, x otherwise."""

    mask: Tensor

    def __init__(self, p: float, together: int) -> None:
        super().__init__()
        self.p, self.together = p, together
        self.shape: tuple[int, ...] = ()  # of one example's mask
        self.register_buffer("mask", torch.empty(0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.p == 0:
            return x
        assert self.mask.dim() == x.dim(), "dropout in training without the client's masks"
        return x * self.mask

    @property
    def scale(self) -> float:
        """What the numbers that are kept are multiplied by."""
        return 1 / (1 - self.p) if self.p < 1 else 0.0


@dataclass
class Masks:
    """Where the streams of a cohort's masks are."""

    keys: Mapping[str, Tensor]  # of each layer, [C] int64
    drawn: int | Tensor = 0  # gradients before this one; for a recording a counter on the device, int64 [1]

    def hold(self) -> None:
        """Buffers of its own, that a recording may read and change."""
        self.keys = {name: keys.clone() for name, keys in self.keys.items()}
        self.drawn = torch.zeros(1, dtype=torch.int64, device=next(iter(self.keys.values())).device)

    def take(self, other: "Masks") -> None:
        assert isinstance(self.drawn, Tensor)
        assert isinstance(other.drawn, int)
        self.drawn.fill_(other.drawn)
        for name, keys in self.keys.items():
            keys.copy_(other.keys[name])

    def buffers(self) -> list[Tensor]:
        assert isinstance(self.drawn, Tensor)
        return [*self.keys.values(), self.drawn]


class Dropout:
    """The dropout layers of a module, replaced by masked ones. Where there are none, nothing is spent on them."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.layers = {f"{name}.mask": layer for name, layer in _replace(module).items()}
        self._shape: torch.Size | None = None  # of the examples that the layers' masks are made for
        self._shapes: dict[torch.Size, dict[str, tuple[int, ...]]] = {}  # of the masks, by that

    def __bool__(self) -> bool:
        return bool(self.layers)

    def masks(self, inputs: Tensor, streams: Masks, dtype: torch.dtype) -> dict[str, Tensor]:
        """{name: [c, B, *shape]} for the next gradient of a batch [c, B, ...]; padding has masks, too."""
        self.probe(inputs)
        made = {}
        for name, layer in self.layers.items():
            mask = torch.empty(*inputs.shape[:2], *layer.shape, dtype=dtype, device=inputs.device)
            if mask.numel():
                _draw(streams.keys[name][: len(inputs)], streams.drawn, layer, mask.flatten(1))
            made[name] = mask
        streams.drawn += 1  # in place, where it is a counter
        return made

    def probe(self, batch: Tensor) -> None:
        """Before the first step of a shape: find each mask's shape, and that nothing else in the module is random."""
        shape = batch.shape[2:]
        if shape == self._shape or not len(batch) or (self._shape is not None and not self.layers):
            return
        if shape not in self._shapes:
            self._look(batch[0, :3])
            self._shapes[shape] = {name: layer.shape for name, layer in self.layers.items()}
        for name, layer in self.layers.items():
            layer.shape = self._shapes[shape][name]
        self._shape = shape

    def _look(self, inputs: Tensor) -> None:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            self._find_shapes(inputs)
            ones = {name: torch.ones(1, *layer.shape, device=inputs.device) for name, layer in self.layers.items()}
            kept = {name: own.clone() for name, own in self.module.named_buffers()}  # this is no step
            before = torch.get_rng_state()
            functional_call(self.module.train(), kept | ones, (inputs,))
            if not torch.equal(before, torch.get_rng_state()):
                raise ValueError(
                    "model: draws random numbers of its own in training (F.dropout, or a layer with a dropout "
                    "setting), which cannot be kept apart by client: use nn.Dropout layers"
                )

    def _find_shapes(self, inputs: Tensor) -> None:
        calls = Counter[str]()

        def note(name: str, layer: Masked, x: Tensor) -> None:
            calls[name] += 1
            layer.shape = tuple(x.shape[1 : x.dim() - layer.together]) + (1,) * layer.together
            if len(x) != len(inputs) or calls[name] > 1:
                where = name.removesuffix(".mask")
                why = "is used twice" if calls[name] > 1 else "sees a tensor whose first axis is not the batch"
                raise ValueError(f"model: dropout layer {where!r} {why}: give each place an nn.Dropout of its own")

        hooks = [
            layer.register_forward_pre_hook(lambda layer, args, name=name: note(name, layer, args[0]))
            for name, layer in self.layers.items()
        ]
        self.module.eval()(inputs)
        for hook in hooks:
            hook.remove()


def _draw(keys: Tensor, draw: int | Tensor, layer: Masked, mask: Tensor) -> None:
    """Into mask [c, n]: 0 with probability p, or else what keeps the mean."""
    below = round(layer.p * WORDS)
    if kernels.suit((mask,)):
        kernels.call("dropout", *mask.shape, keys, draw, below, layer.scale, mask)
    else:
        mask.copy_(words(keys, draw, mask.shape[1]) >= below).mul_(layer.scale)


def _replace(module: nn.Module) -> dict[str, Masked]:
    """Put a masked layer wherever a dropout layer is; {name: layer} of all that are there now and drop anything."""
    made: dict[int, Masked] = {}
    found: dict[str, Masked] = {}
    for name, child in list(module.named_modules(remove_duplicate=False)):
        if isinstance(child, Masked):
            found[name] = child
        elif type(child) in TOGETHER:
            parent, _, last = name.rpartition(".")
            found[name] = made.setdefault(id(child), Masked(child.p, TOGETHER[type(child)]))
            setattr(module.get_submodule(parent), last, found[name])
        elif isinstance(child, nn.modules.dropout._DropoutNd):
            raise ValueError(f"model: layer {name!r} is a {type(child).__name__}: use nn.Dropout instead")
    return {name: layer for name, layer in found.items() if layer.p > 0}
