"""How much privacy is spent: what a run draws and adds, as events of the package `dp-accounting`.

    release   how often   what                                        neighbours differ in
    client    a round     Gaussian, all clients take part             one client, there or with nothing to say
    client    a round     Gaussian, Poisson-sampled at participation  one client, there or not
    client    a round     Gaussian, a fixed number drawn              one client, replaced by another
    part      a round     Gaussian, all parts                         one part, with another change
    example   an epoch    Gaussian, every example in one batch        one example, there or with no gradient
    example   a step      Gaussian, Poisson-sampled at batch/examples one example, there or not

The sampling is the run's own, and cannot be said to be another. Each example belongs to one client, so the ε of a run
is that of the client with the most to spend: the smallest, where examples are Poisson-sampled. A neighbour that
replaces another moves the sum by twice the clip, and so does an example that changes what its part sends. The moments
of a discrete Gaussian are those of the continuous one.
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

ACCOUNTANTS = ("rdp", "pld")
NEEDS = "needs the package dp-accounting: pip install 'fedddp[privacy]'"
MOST = 1e6  # a noise multiplier with which nothing is learned
STEPS = 60  # of the bisection


def available() -> str:
    """Why nothing can be accounted for here; nothing if it can."""
    try:
        import cryptography  # noqa: F401  optional
        import dp_accounting  # noqa: F401
    except ImportError as error:
        return f"{NEEDS} ({error})"
    return ""


@dataclass(frozen=True)
class Release:
    """What a round gives away: so many Gaussian releases, each of a sample of clients or of examples."""

    times: int = 1
    share: float = 1.0  # Poisson-sampled with this probability
    drawn: int = 0  # or so many ...
    total: int = 0  # ... of these, without replacement
    moves: float = 1.0  # how far neighbours move a sum, in units of the clip

    @property
    def replaces(self) -> bool:
        return self.drawn < self.total

    @property
    def neighbours(self) -> str:
        if self.replaces:
            return "one replaced by another"
        if self.moves > 1:
            return "one that sends another change, as when one of its examples is another"
        return "one more or less" if self.share < 1 else "one there, or with nothing to say"

    def event(self, noise: float) -> Any:
        import dp_accounting as dp

        if self.replaces:
            return dp.SampledWithoutReplacementDpEvent(self.total, self.drawn, dp.GaussianDpEvent(noise / 2))
        plain = dp.GaussianDpEvent(noise / self.moves)
        return plain if self.share >= 1 else dp.PoissonSampledDpEvent(self.share, plain)


@dataclass(frozen=True)
class Accountant:
    """ε of so many rounds at `delta`."""

    releases: tuple[Release, ...]  # of the clients that may have the most to spend
    delta: float
    kind: str = "rdp"
    failure: float = 0.0  # probability, in a round, of a draw that the analysis leaves out

    def epsilon(self, noise: float, rounds: int) -> float:
        delta = self.delta - rounds * self.failure
        if delta <= self.delta / 2:
            raise ValueError(
                f"privacy.delta={self.delta}: in {rounds} rounds, no client at all is drawn with probability "
                f"{rounds * self.failure:.2g}; use a larger federation.participation, or privacy.sampling=fixed"
            )
        return max((_epsilon(self.kind, one, noise, rounds, delta) for one in self.releases), default=0.0)

    def noise(self, epsilon: float, rounds: int) -> float:
        """The least multiplier with which `rounds` rounds spend at most epsilon, to a thousandth."""
        low, high = 0.0, 1.0
        while self.epsilon(high, rounds) > epsilon:
            low, high = high, 2 * high
            if high > MOST:
                raise ValueError(f"privacy.epsilon={epsilon}: no noise is enough for it in {rounds} rounds")
        for _ in range(STEPS):
            if high - low < 1e-3 * high:
                break
            middle = (low + high) / 2
            low, high = (middle, high) if self.epsilon(middle, rounds) > epsilon else (low, middle)
        return high


@lru_cache(maxsize=4096)
def _epsilon(kind: str, release: Release, noise: float, rounds: int, delta: float) -> float:
    import dp_accounting as dp

    logging.getLogger("absl").setLevel(logging.ERROR)  # it warns of orders that it leaves out, which costs nothing
    relation = dp.NeighboringRelation
    neighbours = relation.REPLACE_ONE if release.replaces else relation.ADD_OR_REMOVE_ONE
    made = _made(kind)(neighbours)
    made.compose(release.event(noise), rounds * release.times)
    return float(made.get_epsilon(delta))


def _made(kind: str) -> Callable[[Any], Any]:
    if kind == "pld":
        from dp_accounting.pld import PLDAccountant

        return PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    return lambda neighbours: RdpAccountant(None, neighbours)


def of_clients(sampling: str, participation: float, clients: int, delta: float, kind: str) -> Accountant:
    """Every round releases noisy sums over the clients that take part."""
    if participation >= 1:
        return Accountant((Release(),), delta, kind)
    if sampling == "poisson":
        return Accountant((Release(share=participation),), delta, kind, (1 - participation) ** clients)
    if kind == "pld":
        raise ValueError(
            "privacy.accountant=pld: cannot account for a fixed number of clients drawn without replacement; use "
            "privacy.sampling=poisson, or privacy.accountant=rdp"
        )
    drawn = max(1, round(participation * clients))
    return Accountant((Release(drawn=drawn, total=clients),), delta, kind)


def of_parts(delta: float, kind: str) -> Accountant:
    """Every round releases noisy sums over all parts, of which neighbours have one that sends something else."""
    return Accountant((Release(moves=2.0),), delta, kind)


def of_examples(
    sampling: str, sizes: Iterable[int], epochs: int, batch_size: int, samples: int, delta: float, kind: str
) -> Accountant:
    """Every step of a client releases `samples` noisy gradients of its batch."""
    if sampling == "fixed":
        return Accountant((Release(times=epochs * samples),), delta, kind)
    steps = {(min(1.0, batch_size / size), epochs * -(-size // batch_size) * samples) for size in sizes}
    return Accountant(tuple(Release(times=times, share=share) for share, times in _worst(steps)), delta, kind)


def _worst(steps: set[tuple[float, int]]) -> list[tuple[float, int]]:
    """Of those sampled with the same probability, those with most steps; and none that another one outdoes."""
    return [one for one in steps if not any(o != one and o[0] >= one[0] and o[1] >= one[1] for o in steps)]
