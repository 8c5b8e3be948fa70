"""What the convolutional models share: the channel axis, a convolution with its ReLU, the dense layers at the end."""

from itertools import pairwise

import torch
from torch import nn

from fedddp.core.check import check_count


def check_pool(pool: int) -> None:
    check_count("model.pool", pool, most=10_000)


def channels(shape: tuple[int, ...], pool: int = 1) -> tuple[list[nn.Module], int]:
    """The layers that give stored images [N, H, W] a channel axis, if they lack it, and the number of channels.

    With `pool`, images are averaged over squares of so many pixels first: the same network on less work.
    """
    if len(shape) not in (2, 3):
        raise ValueError(
            f"model.name: this model takes images [H, W] or [C, H, W]; the data's inputs are {list(shape)}"
        )
    shrink: list[nn.Module] = [nn.AvgPool2d(pool)] if pool > 1 else []
    return ([nn.Unflatten(1, (1, shape[0])), *shrink], 1) if len(shape) == 2 else (shrink, shape[0])


def conv(
    inputs: int, outputs: int, kernel: int, padding: int = 0, pool: bool = True, bias: bool = True
) -> list[nn.Module]:
    """Convolution, max-pooling by 2 if asked for, and ReLU: which of the two is first changes no bit, only the work."""
    pools: list[nn.Module] = [nn.MaxPool2d(2)] if pool else []
    return [nn.Conv2d(inputs, outputs, kernel, padding=padding, bias=bias), *pools, nn.ReLU()]


def classifier(
    body: list[nn.Module],
    shape: tuple[int, ...],
    hidden: list[int],
    outputs: int,
    bias: bool = True,
    dropout: float = 0.0,
) -> nn.Module:
    """The body, flattened, with dense layers on top; dropout follows each hidden one."""
    try:
        width = nn.Sequential(*body).eval()(torch.zeros(1, *shape)).numel()
    except RuntimeError as error:
        raise ValueError(f"model.name: images of {list(shape)} are too small for this model: {error}") from error
    layers: list[nn.Module] = [nn.Flatten()]
    widths = [width, *hidden]
    for pair in pairwise(widths):
        layers += [nn.Linear(*pair, bias=bias), nn.ReLU()]
        layers += [nn.Dropout(dropout)] if dropout else []
    return nn.Sequential(*body, *layers, nn.Linear(widths[-1], outputs, bias=bias))


def two_convolutions(
    shape: tuple[int, ...],
    width: tuple[int, int],
    hidden: list[int],
    outputs: int,
    bias: bool = True,
    pool: int = 1,
) -> nn.Module:
    """conv 5x5 - pool - conv 5x5 - pool - hidden - outputs, with ReLU"""
    layers, depth = channels(shape, pool)
    layers += conv(depth, width[0], 5, bias=bias) + conv(*width, 5, bias=bias)
    return classifier(layers, shape, hidden, outputs, bias)
