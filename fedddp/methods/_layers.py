"""What one-shot methods need to know of a network's layers: what flows into them, and their initialisations."""

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn

from fedddp.core.params import trained
from fedddp.core.task import Task


def outputs(task: Task, theta: Tensor, inputs: Tensor) -> Tensor:
    """The model's outputs at theta [P] for inputs as it sees them, without dropout."""
    return task.evaluate(theta, inputs)


def layer_inputs(task: Task, theta: Tensor, inputs: Tensor) -> dict[str, Tensor]:
    """What each linear layer is fed at theta [P] by inputs [B, ...]: {prefix: [B', in]}, without dropout.

    Positions of a sequence count as examples, so B' may be a multiple of B.
    """
    fed: dict[str, Tensor] = {}
    handles = [
        layer.register_forward_pre_hook(lambda _, given, prefix=prefix: fed.update({prefix: given[0].detach()}))
        for prefix, layer in linear_layers(task).items()
    ]
    try:
        outputs(task, theta, inputs)
    finally:
        for handle in handles:
            handle.remove()
    return {prefix: given.flatten(0, -2) for prefix, given in fed.items()}


def linear_layers(task: Task) -> dict[str, nn.Linear]:
    """Trained linear layers by the prefix of their parameters' names, in the order they are registered."""
    named = ((f"{name}." if name else "", layer) for name, layer in task.module.named_modules())
    return {p: layer for p, layer in named if isinstance(layer, nn.Linear) and f"{p}weight" in task.layout.names}


def initialisations(task: Task, count: int) -> Tensor:
    """`count` starts of the network [M, P]: the task's own, then fresh draws of every layer's usual initialisation."""
    starts = [task.initial]
    module = deepcopy(task.module)
    for member in range(1, count):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(task.streams.key("initialisation", 0, 0, member))
            for name, layer in module.named_modules():
                _reset(name, layer)
        starts.append(task.layout.flatten(dict(module.named_parameters())).to(task.initial))
    return torch.stack(starts)


def _reset(name: str, layer: nn.Module) -> None:
    reset: Callable[[], None] | None = getattr(layer, "reset_parameters", None)
    if reset is not None:
        reset()
    elif trained(layer):
        raise ValueError(
            f"model: layer {name or type(layer).__name__!r} has parameters but no reset_parameters(), so it cannot be "
            "started anew for an ensemble: give it one, or use method.members=1"
        )
