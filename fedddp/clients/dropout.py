"""Dropout with masks from outside, so that every client draws its own, whoever is computed beside it.

torch's dropout draws from one global generator: vmap refuses it, and in a loop a client's masks would depend on
those before it. Here each layer multiplies by a mask that is handed in with the parameters, drawn from the client's
own stream ("dropout", round, client) for exactly its real examples.
"""

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call

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
        if not self.training:
            return x
        assert self.mask.dim() == x.dim(), "dropout in training without the client's masks"
        return x * self.mask

    @property
    def scale(self) -> float:
        """What the numbers that are kept are multiplied by."""
        return 1 / (1 - self.p) if self.p < 1 else 0.0


class Dropout:
    """The dropout layers of a module, replaced by masked ones. Where there are none, nothing is spent on them."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.layers = {f"{name}.mask": layer for name, layer in _replace(module).items()}
        self._seen = False

    def __bool__(self) -> bool:
        return bool(self.layers)

    def masks(
        self, inputs: Tensor, counts: Sequence[int], generators: Sequence[torch.Generator], dtype: torch.dtype
    ) -> dict[str, Tensor]:
        """{name: [c, B, *shape]} for a batch [c, B, ...] with counts[k] real examples of client k; 0 for padding.

        A client draws layer after layer, and only for its own examples: neither its company nor padding counts.
        """
        self.probe(inputs)
        kept = {name: torch.zeros(*inputs.shape[:2], *layer.shape) for name, layer in self.layers.items()}
        for row, (count, generator) in enumerate(zip(counts, generators, strict=False)):
            for name, layer in self.layers.items():
                kept[name][row, :count].uniform_(generator=generator).ge_(layer.p)
        return {name: kept[name].to(inputs.device, dtype).mul_(layer.scale) for name, layer in self.layers.items()}

    def probe(self, batch: Tensor) -> None:
        """Before the first step: find each mask's shape, and that nothing else in the module is random."""
        if self._seen or not len(batch):
            return
        self._seen = True
        inputs = batch[0, :3]
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            self._find_shapes(inputs)
            ones = {name: torch.ones(1, *layer.shape, device=inputs.device) for name, layer in self.layers.items()}
            before = torch.get_rng_state()
            functional_call(self.module.train(), ones, (inputs,))
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


def _replace(module: nn.Module) -> dict[str, Masked]:
    """Put a masked layer wherever a dropout layer is; {name: layer} of all that are there now."""
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
    return found
