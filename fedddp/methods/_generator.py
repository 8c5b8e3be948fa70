"""Networks that turn noise into inputs of a model: images of any size, or plain vectors.

Their outputs are standardised over the batch, as inputs usually are; no data is needed to know that.
"""

from math import prod

from torch import nn


def generator(shape: tuple[int, ...], latent: int, width: int) -> nn.Module:
    """latent numbers -> one input of `shape`: [H, W] and [C, H, W] by convolutions, anything else by linear layers."""
    if len(shape) not in (2, 3):
        return nn.Sequential(_vectors(prod(shape), latent, width), nn.Unflatten(1, shape))
    depth, height, wide = (1, *shape)[-3:]
    return nn.Sequential(_images(depth, height, wide, latent, width), nn.Flatten(), nn.Unflatten(1, shape))


def _vectors(size: int, latent: int, width: int) -> nn.Module:
    hidden = 8 * width
    return nn.Sequential(
        nn.Linear(latent, hidden),
        nn.BatchNorm1d(hidden),
        nn.LeakyReLU(0.2),
        nn.Linear(hidden, size),
        nn.BatchNorm1d(size, affine=False),
    )


def _images(depth: int, height: int, wide: int, latent: int, width: int) -> nn.Module:
    small, middle = (-(-height // 4), -(-wide // 4)), (-(-height // 2), -(-wide // 2))
    return nn.Sequential(
        nn.Linear(latent, 2 * width * prod(small)),
        nn.Unflatten(1, (2 * width, *small)),
        nn.BatchNorm2d(2 * width),
        nn.Upsample(middle),
        nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False),
        nn.BatchNorm2d(2 * width),
        nn.LeakyReLU(0.2),
        nn.Upsample((height, wide)),
        nn.Conv2d(2 * width, width, 3, padding=1, bias=False),
        nn.BatchNorm2d(width),
        nn.LeakyReLU(0.2),
        nn.Conv2d(width, depth, 3, padding=1),
        nn.Tanh(),
        nn.BatchNorm2d(depth, affine=False),
    )
