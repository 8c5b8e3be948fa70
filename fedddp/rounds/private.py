"""Differential privacy of clients, or of their parts: clipped changes, and exact integers as noise on their sum.

    client   change_k <- clip(value_k - base, C) rounded to multiples of g = 2^-b
             sites    <- what it remembers follows from change_k, so that all sites and the noise make the total
    server   total    <- Σ_k change_k + g X,    X ~ discrete Gaussian on the integers (rounds/clipped.py)
             step     <- the method's, of total, or of the mean base + total/(participation K); then made proper

Each of several fields (natural parameters are two) has a clip and a grid of its own; √fields times the noise for each
makes them one Gaussian release. Every client weighs the same, and means are divided by the number that is expected: who
took part is not told.

The noise is drawn once, by all ranks alike, so ranks know it. With exchange.secure each client adds a share of it, of
scale s/√n, before its numbers leave; nobody then knows all of it. A sum of n discrete Gaussians of variance s²/n is no
discrete Gaussian, but at this scale closer to one than exp(-s²/n), s²/n > 10^6, in every log-likelihood ratio
(Kairouz, Liu & Steinke 2021, Theorem 1), and is accounted as that. A client remembers its change without that noise:
sites that had it in them would be corrected by it in later rounds, all together, and take it out of the total again.

With `parts` (local averaging: Heikkilä et al. 2022, read in their published program) each part of a client's examples
has a change of its own, clipped to C, and the client's is their mean: an example moves one part's change, by 2C/parts.
A client's parts share its site, so the next round's changes of all parts depend on it; it therefore adds all of the
noise itself and remembers the noisy change, which is what it has told: sites then make the total, noise and all.
"""

import os
from math import sqrt
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core.task import Task
from fedddp.exchange.discrete import KEY, key_of
from fedddp.exchange.messages import Gather, Message, Sum, Totals
from fedddp.exchange.ranges import EVERY, PRECISION
from fedddp.rounds.around import Around
from fedddp.rounds.averaging import averaged, shares
from fedddp.rounds.clipped import Grid, share
from fedddp.rounds.method import Method
from fedddp.rounds.privacy import ON_CHANGES, PrivacySettings

BELOW, RATE = "below", 0.2  # adaptive clipping: how many were not clipped, how fast the clip follows (Andrew et al.)


class Server(NamedTuple):
    """The method's memory, how many rounds had noise, and the clips that are in force."""

    method: Any
    rounds: Tensor  # int64
    clip: Tensor  # float64, of each field

    @property
    def theta(self) -> Tensor:
        theta: Tensor = self.method.theta
        return theta


class Private(Around):
    """A method whose clients' changes are clipped and whose sums are noisy."""

    _holds: ClassVar[tuple[type, ...]] = (Server,)
    settings: PrivacySettings
    noise: float  # deviation of all that a round releases, in units of the clip
    expected: float  # clients in a round
    seed: int = 0
    secret: bytes = b""  # of the system's randomness, the same on every rank
    shared: bool = False  # whether every client adds a share of the noise
    parts: int = 1  # of a client's examples: each one's change is clipped, and the client adds all of the noise

    @property
    def _field(self) -> str:
        return self.method.clips or self.method.compresses

    def init_server(self, task: Task) -> Server:
        own = self.method.init_server(task)
        rounds = torch.zeros((), dtype=torch.int64, device=task.device)
        clips = [self._clip(name) for name in self._names(own)]
        return Server(own, rounds, torch.tensor(clips, dtype=torch.float64, device=task.device))

    def _names(self, own: Any) -> list[str]:
        """Of what is clipped by itself: natural parameters [2, n] are two fields."""
        base = self.method.base(own)
        natural = isinstance(base, Tensor) and base.dim() == 2 and len(base) == 2
        return [self._field, self._field + PRECISION] if natural else [self._field]

    def _clip(self, name: str) -> float:
        given = self.settings.clip
        bound = given.get(name, given.get(name.removesuffix(PRECISION), given.get(EVERY, 0.0)))
        if not bound:
            raise ValueError(f"privacy.clip: has none for the field {name}; write privacy.clip.{name}=...")
        return bound

    def client_step(self, server: Server, clients: Any, cohort: Cohort, local: Any) -> tuple[Any, Message]:
        found = [self._part(server, clients, one, local) for one in shares(cohort, self.parts)]
        own = averaged([own for own, _, _ in found])
        kept = torch.stack([sent for _, sent, _ in found]).sum(0)
        sent = kept + self._own_noise(server, kept, cohort) if self._adds else kept
        change = (sent if self.parts > 1 else kept) / self.parts  # noise that only it has added is no secret to it
        sums: Message = {self._field: Sum(sent)}
        if self.settings.quantile:
            sums = {**sums, BELOW: Sum(self._count(server).round(found[0][2]))}
        return self.method.remember(clients, own, change.to(cohort.task.dtype)), sums

    def _part(self, server: Server, clients: Any, cohort: Cohort, local: Any) -> tuple[Any, Tensor, Tensor]:
        """What a step leaves, its change on the grid [C, ...], and whether each field was within its clip [C, fields].

        Each field counts ½ or -½.
        """
        own, message = self.method.client_step(server.method, clients, cohort, local)
        entry = message[self._field]
        assert not isinstance(entry, Gather)  # as `clips` and `compresses` promise
        change = entry.value - self.method.base(server.method)
        rows = change.reshape(len(change), len(server.clip), -1)
        grids = self._grids(server, change[0].numel())
        sent = torch.stack([grid.round(rows[:, field]) for field, grid in enumerate(grids)], dim=1)
        below = (rows.double().norm(dim=2) <= server.clip).double() - 0.5
        return own, sent.view(change.shape), below

    @property
    def _adds(self) -> bool:
        """Whether clients add noise before their numbers leave."""
        return self.shared or self.parts > 1

    def _own_noise(self, server: Server, sent: Tensor, cohort: Cohort) -> Tensor:
        grids = self._grids(server, sent[0].numel())
        drawn = [self._draw(grids, self._scales(grids), cohort.round, client) for client in cohort.ids]
        return torch.stack(drawn).view(sent.shape).to(sent.device)

    def _scales(self, grids: list[Grid]) -> list[int]:
        """Of the noise that is drawn at one place: all of it, or a client's share."""
        return [share(grid.scale, self.expected) if self.shared else grid.scale for grid in grids]

    def _draw(self, grids: list[Grid], scales: list[int], number: int, who: int | str) -> Tensor:
        """[fields, n] for a round."""
        names = [who] if len(grids) == 1 else [f"{who}/{field}" for field in range(len(grids))]
        keys = [self._key(number, name) for name in names]
        return torch.stack([g.draw(g.size, k, s) for g, k, s in zip(grids, keys, scales, strict=True)])

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        number, sums = int(server.rounds), total[self._field]
        if not self._adds:
            grids = self._grids(server, sums.numel())
            noise = self._draw(grids, self._scales(grids), number, self._field)
            sums = sums + noise.view(sums.shape).to(sums.device)
        clip = server.clip
        if self.settings.quantile:
            grid = self._count(server)
            count = total[BELOW] + grid.draw(len(clip), self._key(number, BELOW), grid.scale).to(clip.device)
            clip = clip * torch.exp(RATE * (self.settings.quantile - (count / self.expected + 0.5)))
        totals = self.method.noisy(server.method, sums / self.parts, self.expected)
        totals = {name: value.to(task.dtype) for name, value in totals.items()}
        own = self.method.mend(self.method.server_step(server.method, totals, task))
        return Server(own, server.rounds + 1, clip)

    def _key(self, number: int, who: int | str) -> bytes:
        """Of the noise of a round, or of what a client adds to it."""
        if self._adds and self.settings.randomness == "system":
            return os.urandom(KEY)
        return key_of(self.secret or self.seed, "privacy", number, who)

    def _grids(self, server: Server, size: int) -> list[Grid]:
        """Of each field of a change of so many numbers."""
        clips = server.clip.tolist()
        multiplier = self._multipliers[0] * sqrt(len(clips))
        return [Grid.of(clip, multiplier, size // len(clips)) for clip in clips]

    def _count(self, server: Server) -> Grid:
        """Of how many clients were not clipped, in each field."""
        fields = len(server.clip)
        return Grid.of(0.5 * sqrt(fields), self._multipliers[1], fields)

    @property
    def _multipliers(self) -> tuple[float, float]:
        """Of the noise on changes and on the count, which together are as private as `noise`."""
        if not self.settings.quantile:
            return self.noise, 0.0
        count = max(self.expected / 10, 2 * self.noise)
        return (self.noise**-2 - count**-2) ** -0.5, count

    def own_models(self, server: Server, clients: Any) -> None:
        """What a client remembers is nobody else's, and so are its duals."""

    def duals(self, clients: Any) -> None:
        """See own_models."""

    def metrics(self, before: Server, after: Server, total: Totals) -> dict[str, float]:
        """Of the sum before there was noise: nobody's."""
        return {}

    def forget(self, server: Server, client: Any, task: Task) -> Server | None:
        raise ValueError(
            f"forget: with privacy.level={self.settings.level}, the server before and after would tell exactly what "
            "the client has added; start a run with federation.without"
        )


def ranges(method: Method[Any, Any, Any], task: Task) -> dict[str, float]:
    """The largest numbers that clients send with the noise that they add, once in 10^40 aside; by field, if they do."""
    if not isinstance(method, Private) or not method._adds:
        return {}
    server = method.init_server(task)
    base = method.method.base(server.method)
    grids = method._grids(server, base.numel() if isinstance(base, Tensor) else task.layout.numel)
    scales = method._scales(grids)
    largest = [g.clip * method.parts + 14 * s * 2.0**-g.bits for g, s in zip(grids, scales, strict=True)]
    return dict(zip(method._names(server.method), largest, strict=True))


def private(
    method: Method[Any, Any, Any], settings: PrivacySettings, name: str, noise: float, expected: float, **more: Any
) -> Method[Any, Any, Any]:
    """The method as it is, or wrapped."""
    if settings.level not in ON_CHANGES:
        return method
    if not (method.clips or method.compresses):
        raise ValueError(
            f"privacy.level={settings.level}: not for method={name}, which sends other than one change of parameters, "
            "natural parameters or sites. Use fedavg, fedprox, an adaptive server, pvi, bayes_admm or fedlap_cov; or "
            "privacy.level=example"
        )
    return Private(method, settings, noise, expected, **more)
