"""Splits as the papers' authors dealt them, number by number: numpy's legacy generator, seeded as np.random.seed does.

Each function makes the draws of one released program in its order, so that a seed is the published split. Nothing is
moved afterwards: a client may come out empty, which the run then refuses.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedddp.core.check import check

Indices = NDArray[np.int64]


def two_level(targets: Tensor, clients: int, size_alpha: float, alpha: float, share: float, seed: int) -> list[Tensor]:
    """Sizes ~ Dir(size_alpha), then a mix of classes ~ Dir(alpha) for each client; a count of 1 becomes 2.

    Of each class only `share` is dealt, after all of it was shuffled.
    """
    draw, members = np.random.RandomState(seed), _members(targets)
    sizes = draw.dirichlet([size_alpha] * clients)
    weights = sizes[:, None] * draw.dirichlet([alpha] * len(members), clients)  # [K, classes]
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    for label, inside in enumerate(members):
        draw.shuffle(inside)
        counts = np.round(len(inside) * share * weights[:, label] / weights[:, label].sum()).astype(np.int64)
        counts[counts == 1] = 2
        for part, run in zip(parts, np.split(inside, np.cumsum(counts)), strict=False):
            part.append(run)
    return _joined(parts)


def fixed_classes(targets: Tensor, clients: int, points: int, seed: int) -> list[Tensor]:
    """Two classes for each client: the one given least often so far, and a drawn one that is not yet used up.

    Where a class has too few points left, a client gets its last ones, which others may have as well. The released
    program draws for ever where 2K is no multiple of the classes, which is refused. Where it is, a second class is
    always left: no class has more still to give than clients are left, since the one with most is taken first.
    """
    draw, members = np.random.RandomState(seed), _members(targets)
    most, over = divmod(2 * clients, len(members))
    fits = f"a number whose double {len(members)} classes share alike, with split.dealing=numpy (or use balanced)"
    check("split.clients", clients, over == 0, fits)
    times, chosen = np.zeros(len(members), dtype=np.int64), np.zeros((clients, len(members)), dtype=bool)
    for client in range(clients):
        first = second = int(times.argmin())
        times[first] += 1
        while second == first or times[second] >= most:
            second = int(draw.choice(len(members), 1, replace=False)[0])
        times[second] += 1
        chosen[client, [first, second]] = True
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    for label, inside in enumerate(members):
        draw.shuffle(inside)
        for place, client in enumerate(np.flatnonzero(chosen[:, label]).tolist()):
            run = inside[place * points : (place + 1) * points]
            parts[client].append(run if len(run) == points else inside[-points:])
    return _joined(parts)


def per_client(targets: Tensor, clients: int, alpha: float, seed: int) -> list[Tensor]:
    """A mix of classes ~ Dir(alpha) for each client; classes cut by the mixes' shares, then each client shuffled."""
    draw, members = np.random.RandomState(seed), _members(targets)
    mixes = np.stack([draw.dirichlet(np.repeat(alpha, len(members))) for _ in range(clients)])  # [K, classes]
    parts: list[list[Indices]] = [[] for _ in range(clients)]
    for label, inside in enumerate(members):
        draw.shuffle(inside)
        shares = mixes[:, label] / mixes[:, label].sum()
        cuts = (np.cumsum(shares) * len(inside)).astype(np.int64)[:-1]
        for part, run in zip(parts, np.split(inside, cuts), strict=True):
            part.append(run)
    joined = _joined(parts)
    for whole in joined:
        draw.shuffle(whole.numpy())  # which shares the tensor's memory
    return joined


def _members(targets: Tensor) -> list[Indices]:
    """The points of each class, in order."""
    labels = targets.numpy()
    return [np.flatnonzero(labels == label) for label in range(int(labels.max(initial=-1)) + 1)]


def _joined(parts: list[list[Indices]]) -> list[Tensor]:
    return [torch.from_numpy(np.concatenate(part)) for part in parts]
