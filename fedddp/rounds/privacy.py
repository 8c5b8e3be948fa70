"""Client-level differential privacy: clipped changes on a grid, and exact integers as noise on their sum.

    client   change_k <- clip(value_k - base, C) rounded to multiples of g = 2^-b
    server   total    <- Σ_k change_k + g X,    X ~ discrete Gaussian of scale s on the integers
             mean     <- base + total/(participation K)

Everything up to the division is exact: multiples of g in float64, added as integers. A client moves the sum by at most
C/g + √P/2 grid steps (the second is the rounding), so s = noise (C/g + √P/2), rounded up, and b such that s
has 23 bits. Each of several fields has a clip of its own; √fields makes them one Gaussian release. Every client weighs
the same, and means are divided by the number that is expected: who took part is not told.

The noise is drawn once, by all ranks alike, so ranks know it. With exchange.secure each client adds a share of it, of
scale s/√n, before its numbers leave; nobody then knows all of it. A sum of n discrete Gaussians of variance s²/n is no
discrete Gaussian, but at this scale closer to one than exp(-s²/n), s²/n > 10^6, in every log-likelihood ratio
(Kairouz, Liu & Steinke 2021, Theorem 1), and is accounted as that.
"""

import os
from dataclasses import dataclass, field
from math import ceil, floor, log2, sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.exchange.discrete import KEY, LARGEST, Bits, discrete_gaussian, key_of
from fedddp.exchange.messages import Gather, Message, Sum, Totals
from fedddp.exchange.ranges import EVERY
from fedddp.rounds.accounting import ACCOUNTANTS, available
from fedddp.rounds.method import Method, Phase

BELOW, RATE = (
    "below",
    0.2,
)  # adaptive clipping: how many were not clipped, and how fast the clip follows (Andrew et al.)
LEVELS = ("none", "client", "example")
SAMPLINGS = ("fixed", "poisson")
RANDOM = ("seed", "system")
GRADIENT = "gradient"  # the name of what is clipped at the level of examples
SMALLEST_SHARE = 1000  # scale of a client's share of the noise


@dataclass
class PrivacySettings:
    level: str = "none"  # whom it protects: none, client (all a client has) or example (one of a client's examples)
    epsilon: float = 0.0  # what a run may spend; without noise, the noise follows from it; 0: as noise says
    delta: float = 1e-5  # the probability of spending more, in (0, 1)
    noise: float = 0.0  # deviation of the noise in units of the clip; 0: as epsilon says
    clip: dict[str, float] = field(default_factory=dict)  # norm of a client's change by field, or all; gradient=...
    quantile: float = 0.0  # share of the clients whose changes the clip follows, in (0, 1) (adaptive); 0: it stays
    sampling: str = "fixed"  # fixed (a fixed number of clients; epochs of examples) or poisson (each by itself)
    accountant: str = "rdp"  # rdp (Rényi) or pld (privacy loss distributions, tighter and slower)
    randomness: str = "seed"  # of the noise: seed (the run's, for simulation) or system (bits do not repeat)

    def __post_init__(self) -> None:
        check("privacy.level", self.level, self.level in LEVELS, " or ".join(LEVELS))
        check("privacy.epsilon", self.epsilon, self.epsilon >= 0, "above 0, or 0 for what the noise gives")
        check("privacy.noise", self.noise, self.noise >= 0, "above 0, or 0 for what epsilon gives")
        check("privacy.delta", self.delta, 0 < self.delta < 1, "in (0, 1)")
        check("privacy.quantile", self.quantile, 0 <= self.quantile < 1, "in (0, 1), or 0 for a clip that stays")
        check("privacy.sampling", self.sampling, self.sampling in SAMPLINGS, " or ".join(SAMPLINGS))
        check("privacy.accountant", self.accountant, self.accountant in ACCOUNTANTS, " or ".join(ACCOUNTANTS))
        check("privacy.randomness", self.randomness, self.randomness in RANDOM, " or ".join(RANDOM))
        for name, bound in self.clip.items():
            check(f"privacy.clip.{name}", bound, bound > 0, "above 0")
        if self.level == "none":
            return
        if missing := available():
            raise ValueError(f"privacy.level={self.level}: {missing}")
        if not self.epsilon and not self.noise:
            raise ValueError(f"privacy.level={self.level}: give privacy.epsilon=... or privacy.noise=...")
        if not self.clip or (self.level == "example" and GRADIENT not in self.clip):
            name = GRADIENT if self.level == "example" else EVERY
            raise ValueError(f"privacy.level={self.level}: needs privacy.clip.{name}=... (the largest norm)")

    @property
    def samples_clients(self) -> bool:
        """Whether each client takes part by itself."""
        return self.level == "client" and self.sampling == "poisson"

    def uses_total(self) -> bool:
        """Whether the noise of a round depends on how many there will be."""
        return self.level != "none" and not self.noise


@dataclass(frozen=True)
class Grid:
    """Of one field: sums are multiples of 2^-bits, and noise has this scale in units of it."""

    clip: float
    bits: int
    scale: int

    @classmethod
    def of(cls, clip: float, noise: float, size: int) -> "Grid":
        """`noise` in units of the clip, `size` numbers."""
        bits = floor(log2(LARGEST / 2)) - ceil(log2(noise * clip))
        while True:
            scale = ceil(noise * (clip * 2.0**bits + sqrt(size) / 2 + 1))
            if scale <= LARGEST:
                return cls(clip, bits, scale)
            bits -= 1

    def round(self, change: Tensor) -> Tensor:
        """Rows [C, n], shortened to the clip and on the grid, in float64."""
        value = change.double()
        norm = value.norm(dim=1, keepdim=True)
        fine = norm <= self.clip  # false of what is not finite, which stays so
        return torch.where(fine, value, value * (self.clip / norm)).mul_(2.0**self.bits).round_().mul_(2.0**-self.bits)

    def draw(self, count: int, key: bytes, scale: int) -> Tensor:
        """[count] of the noise."""
        return torch.from_numpy(discrete_gaussian(scale, count, Bits(key))).double().mul_(2.0**-self.bits)


class Server(NamedTuple):
    """The method's memory, how many rounds had noise, and the clip that is in force."""

    method: Any
    rounds: Tensor  # int64
    clip: Tensor  # float64

    @property
    def theta(self) -> Tensor:
        theta: Tensor = self.method.theta
        return theta


class Private(Method[Server, Any, Any]):
    """A method whose clients' changes are clipped and whose sums are noisy; all else is the method's own."""

    method: Method[Any, Any, Any]
    settings: PrivacySettings
    noise: float  # deviation of all that a round releases, in units of the clip
    expected: float  # clients in a round
    seed: int = 0
    secret: bytes = b""  # of the system's randomness, the same on every rank
    shared: bool = False  # whether every client adds a share of the noise

    @property
    def _field(self) -> str:
        return self.method.compresses

    def init_server(self, task: Task) -> Server:
        clip = self.settings.clip.get(self._field, self.settings.clip.get(EVERY, 0.0))
        if not clip:
            raise ValueError(
                f"privacy.clip: has none for the field {self._field}; write privacy.clip.{self._field}=..."
            )
        zero = torch.zeros((), dtype=torch.int64, device=task.device)
        return Server(self.method.init_server(task), zero, torch.full_like(zero, clip, dtype=torch.float64))

    def init_clients(self, count: int, task: Task, local: Any) -> Any:
        return self.method.init_clients(count, task, local)

    def client_step(self, server: Server, clients: Any, cohort: Cohort, local: Any) -> tuple[Any, Message]:
        own, message = self.method.client_step(server.method, clients, cohort, local)
        entry = message[self._field]
        assert not isinstance(entry, Gather)  # as `compresses` promises
        change = entry.value - self.method.base(server.method)
        grid = self._grid(server, change.shape[1])
        sent = grid.round(change)
        if self.shared:
            scale = share(grid.scale, self.expected)
            drawn = [grid.draw(change.shape[1], self._key(cohort.round, client), scale) for client in cohort.ids]
            sent += torch.stack(drawn).to(sent.device)
        sums: Message = {self._field: Sum(sent)}
        if self.settings.quantile:
            below = (change.double().norm(dim=1, keepdim=True) <= server.clip).double() - 0.5
            sums = {**sums, BELOW: Sum(self._count.round(below))}
        return own, sums

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        number, base = int(server.rounds), self.method.base(server.method)
        noisy = self._noisy(total[self._field], self._grid(server, task.layout.numel), number, self._field)
        mean = (base + noisy / self.expected).to(task.dtype)
        clip = server.clip
        if self.settings.quantile:
            share = self._noisy(total[BELOW], self._count, number, BELOW)[0] / self.expected + 0.5
            clip = clip * torch.exp(RATE * (self.settings.quantile - share))
        return Server(self.method.server_step(server.method, {self._field: mean}, task), server.rounds + 1, clip)

    def _noisy(self, total: Tensor, grid: "Grid", number: int, name: str) -> Tensor:
        if self.shared:
            return total
        return total + grid.draw(len(total), self._key(number, name), grid.scale).to(total.device)

    def _key(self, number: int, who: int | str) -> bytes:
        """Of the noise of a round, or of a client's share of it."""
        if self.shared and self.settings.randomness == "system":
            return os.urandom(KEY)
        return key_of(self.secret or self.seed, "privacy", number, who)

    def _grid(self, server: Server, size: int) -> "Grid":
        return Grid.of(float(server.clip), self._multipliers[0], size)

    @property
    def _count(self) -> "Grid":
        """Of how many clients were not clipped: each adds ½ or -½."""
        return Grid.of(0.5, self._multipliers[1], 1)

    @property
    def _multipliers(self) -> tuple[float, float]:
        """Of the noise on changes and on the count, which together are as private as `noise`."""
        if not self.settings.quantile:
            return self.noise, 0.0
        count = max(self.expected / 10, 2 * self.noise)
        return (self.noise**-2 - count**-2) ** -0.5, count

    def phase(self, server: Server, index: int) -> Phase | None:
        own = self.method.phase(server.method, index)
        return own and Phase(self.client_step, self.server_step, own.broadcast)

    def broadcast(self, server: Server) -> tuple[Any, ...]:
        return self.method.broadcast(server.method)

    def models(self, server: Server) -> Tensor:
        return self.method.models(server.method)

    def posterior(self, server: Server) -> Tensor | None:
        return self.method.posterior(server.method)

    def improper(self, server: Server) -> str:
        return self.method.improper(server.method)

    def uses_total(self) -> bool:
        return self.method.uses_total()


def ranges(method: Method[Any, Any, Any], task: Task) -> dict[str, float]:
    """The largest number that a private method's client with its share of the noise sends, once in 10^40 aside."""
    if not isinstance(method, Private) or not method.shared:
        return {}
    grid = method._grid(method.init_server(task), task.layout.numel)
    return {method._field: grid.clip + 14 * share(grid.scale, method.expected) * 2.0**-grid.bits}


def share(scale: int, clients: float) -> int:
    """The scale of each client's share of the noise."""
    own = ceil(scale / sqrt(clients))
    if own < SMALLEST_SHARE:
        raise ValueError(f"privacy with exchange.secure: {clients} clients are too many for shares of the noise")
    return own


def private(
    method: Method[Any, Any, Any], settings: PrivacySettings, name: str, noise: float, expected: float, **more: Any
) -> Method[Any, Any, Any]:
    """The method as it is, or wrapped."""
    if settings.level != "client":
        return method
    if not method.compresses:
        raise ValueError(
            f"privacy.level=client: not for method={name}, whose clients send other than a change of the parameters, "
            "or remember what they sent. Use fedavg, fedprox or an adaptive server; or privacy.level=example"
        )
    return Private(method, settings, noise, expected, **more)
