"""FedBEns' Fig. 1: two clients in the plane, one of whose losses has two minima; which of them matters for both?

Left the loss of client 1, a deep and narrow minimum beside a broad one, with the ways of gradient descent from several
starts; in the middle that of client 2, a parabola; right their sum. The optimum of the sum is rebuilt from a parabola
for each client, around client 1's deep or its broad minimum, and from FedBEns' mixture of all that descents have found
(its own descents, and the step of the lowest objective).
"""

from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import torch
from matplotlib.figure import Figure
from torch import Tensor
from torch.func import grad, hessian, vmap

from fedddp.core.rng import stream
from fedddp.methods._mixture import Mixture, slope
from fedddp.records.pictures import COLOURS, STYLE

DEEP, BROAD, OTHER = ((-2.0, 1.5), (2.0, -1.0), (1.6, 1.0))  # minima: client 1's two, client 2's
SHARES, WIDTHS = (0.6, 0.4), (0.6, 1.1)  # of client 1's two bumps
CURVED = (1.2, 0.8)  # client 2's curvature
STARTS, STEPS, RATE, NOISE = 8, 150, 0.05, 0.3
SERVER_STEPS, SERVER_RATE = 200, 0.05
PRIOR = 0.01  # precision of the prior, which hardly counts
EDGE = 4.0


class Found(NamedTuple):
    ways: list[Tensor]  # [steps, starts, 2] of each client
    truth: Tensor  # [2] where the sum of both losses is least
    deep: Tensor  # [2] from client 1's deep minimum alone
    broad: Tensor  # [2] from its broad one
    ensemble: Tensor  # [2] FedBEns' of all minima that were found


def first(w: Tensor) -> Tensor:
    """Client 1's loss of w [2]: minus the log of two bumps."""
    bumps = []
    for centre, share, width in zip((DEEP, BROAD), SHARES, WIDTHS, strict=True):
        away = (w - w.new_tensor(centre)).square().sum() / width**2
        bumps.append(w.new_tensor(share / width**2).log() - 0.5 * away)
    return -torch.stack(bumps).logsumexp(0)


def second(w: Tensor) -> Tensor:
    return 0.5 * (w.new_tensor(CURVED) * (w - w.new_tensor(OTHER)).square()).sum()


CLIENTS = (first, second)


def study(seed: int = 0) -> Found:
    starts = EDGE * (2 * torch.rand(STARTS, 2, generator=stream("fedbens toy", seed), dtype=torch.float64) - 1)
    ways = [_descend(loss, starts, seed) for loss in CLIENTS]
    modes = torch.stack([_settled(loss, way[-1]) for loss, way in zip(CLIENTS, ways, strict=True)])  # [2, starts, 2]
    curvature = torch.stack([vmap(hessian(loss))(own) for loss, own in zip(CLIENTS, modes, strict=True)])
    alone = [_settled(first, starts.new_tensor([at]))[0] for at in (DEEP, BROAD)]
    deep, broad = (_of_parabolas([own, modes[1, 0]]) for own in alone)
    grid = _grid(101).flatten(0, 1)
    lowest = grid[vmap(_both)(grid).argmin()]
    return Found(ways, _settled(_both, lowest[None])[0], deep, broad, _ensemble(modes, curvature))


def _both(w: Tensor) -> Tensor:
    return first(w) + second(w)


def _descend(loss: Any, starts: Tensor, seed: int) -> Tensor:
    """Gradient descent with noise that dies away, from every start."""
    generator, w, way = stream("fedbens toy noise", seed), starts.clone(), [starts]
    for step in range(STEPS):
        noise = NOISE * (1 - step / STEPS) * torch.randn(w.shape, generator=generator, dtype=w.dtype)
        w = w - RATE * (vmap(grad(loss))(w) + noise)
        way.append(w)
    return torch.stack(way)


def _settled(loss: Any, points: Tensor) -> Tensor:
    """The minima close by, by Newton's method."""
    for _ in range(8):
        points = points - torch.linalg.solve(vmap(hessian(loss))(points), vmap(grad(loss))(points))
    return points


def _of_parabolas(modes: list[Tensor]) -> Tensor:
    """Where the sum of the clients' parabolas around these minima is least."""
    curvature = [hessian(loss)(mode) for loss, mode in zip(CLIENTS, modes, strict=True)]
    pull = sum(own @ mode for own, mode in zip(curvature, modes, strict=True))
    return torch.linalg.solve(sum(curvature[1:], curvature[0]), pull)


def _ensemble(modes: Tensor, curvature: Tensor) -> Tensor:
    """FedBEns' descents on the product of both mixtures, from the medians of the clients' minima."""
    eye = PRIOR * torch.eye(2, dtype=modes.dtype)
    weight = torch.full(modes.shape[:2], 1 / STARTS, dtype=torch.float64)
    mixture = Mixture(modes, curvature.flatten(2), torch.logdet(curvature + eye), weight)

    def times(rows: Tensor, vectors: Tensor) -> Tensor:
        return vectors @ (rows.view(-1, 2, 2) + eye)

    theta, best, least = modes.mean(0), modes.mean(0), torch.full((STARTS,), torch.inf, dtype=torch.float64)
    for _ in range(SERVER_STEPS):
        slopes, values = slope(mixture, theta, times)
        value = values.sum(0) - 0.5 * PRIOR * theta.square().sum(1)  # Eq. 4: divided by the prior once
        best = torch.where((value < least).unsqueeze(1), theta, best)
        least = torch.minimum(least, value)
        theta = theta - SERVER_RATE * (slopes.sum(0) - PRIOR * theta)
    return best[least.argmin()]


def _grid(size: int) -> Tensor:
    """[size, size, 2]"""
    axis = torch.linspace(-EDGE, EDGE, size, dtype=torch.float64)
    return torch.stack(torch.meshgrid(axis, axis, indexing="xy"), dim=2)


def draw(out: Path, seed: int = 0) -> None:
    """The figure as PNG, SVG or PDF, by the name of `out`."""
    found, grid = study(seed), _grid(121)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(9, 3), layout="constrained")
        panels = zip(figure.subplots(1, 3), ("client 1", "client 2", "both"), (*CLIENTS, _both), strict=True)
        for number, (axes, title, loss) in enumerate(panels):
            height = vmap(vmap(loss))(grid)
            axes.contour(*grid.unbind(2), (height - height.min()).sqrt(), levels=14, cmap="Greys_r", linewidths=0.8)
            axes.set(title=title, xlim=(-EDGE, EDGE), ylim=(-EDGE, EDGE), aspect="equal")
            axes.grid(visible=False)
            if number < 2:
                for way in found.ways[number].unbind(1):
                    axes.plot(*way.T, ":", color=COLOURS[0], lw=1.2)
        axes.plot(*found.deep, "o", color=COLOURS[1], ms=9, label="parabola at the deep minimum")
        axes.plot(*found.broad, "o", color=COLOURS[1], ms=5, label="at the broad one")
        axes.plot(*found.ensemble, "*", color="#e0a800", ms=13, label="FedBEns")
        axes.plot(*found.truth, "k+", ms=9, label="optimum")
        axes.legend(fontsize=6.5, loc="lower left")
        figure.savefig(out, dpi=150)
