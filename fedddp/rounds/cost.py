"""What a cohort costs: a linear model of its seconds, learned from the rounds themselves.

    seconds ≈ per_cohort + per_step · (steps of its longest client) + per_row · (steps of all its clients together)

and how fast each rank is beside the others. Placement never changes bits, so it may follow the clock; but all ranks
must place alike, so they learn from the same gathered numbers and compute in plain Python floats, which are the same on
every processor.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

FORGET = 0.7  # what an earlier round still weighs
TRUST = 1e-3  # weight of the guess beside measured cohorts, each of weight 1
STEADY = 0.9  # the same for a rank's speed: other people's processes come and go
ALIKE = 1.2  # ranks within this ratio are taken as equally fast: the rest is noise


class Work(NamedTuple):
    """What the seconds of a cohort are made of."""

    cohorts: float
    longest: float  # steps of the client with most
    steps: float  # of all clients together


class Timed(NamedTuple):
    """A cohort that was computed."""

    work: Work
    rank: int
    seconds: float


GUESS = Work(1e-3, 2e-4, 1e-3)


@dataclass
class Cost:
    epochs: int = 1
    batch_size: int = 1
    guess: Work = GUESS  # seconds for one of each, before anything was measured
    constants: Work = GUESS  # as measured
    speeds: list[float] = field(default_factory=list)  # of each rank, beside the mean; empty: all alike
    _sums: list[float] = field(default_factory=lambda: [0.0] * 9)  # of the normal equations: right side, upper triangle

    @classmethod
    def of(cls, local: Any, params: int, measured: Sequence[float] = ()) -> "Cost":
        """For a solver and a model's size: what an earlier part of the run measured, or about what a core does."""
        epochs, batch = local.passes()
        arithmetic, memory = 6 * params * batch / 2e10, 32 * params / 1e10
        guess = Work(*measured) if measured else Work(1e-3, 2e-4, arithmetic + memory)
        guess = Work(*(max(seconds, 1e-9) for seconds in guess))
        return cls(epochs, batch, guess, guess)

    def work(self, sizes: Sequence[int]) -> Work:
        """Of a cohort whose clients have so many examples, larger ones first."""
        steps = [self.epochs * -(-size // self.batch_size) for size in sizes]
        return Work(1, steps[0], sum(steps))

    def seconds(self, work: Work) -> float:
        return _dot(self.constants, work)

    def learn(self, cohorts: Iterable[Timed], ranks: int) -> None:
        """Fit the constants to relative errors, the latest round weighing most; then see who was fast."""
        cohorts = [timed for timed in cohorts if timed.seconds > 0]
        self._sums = [FORGET * entry for entry in self._sums]
        for work, _, seconds in cohorts:
            a, b, c = (part / seconds for part in work)
            terms = (a, b, c, a * a, a * b, a * c, b * b, b * c, c * c)
            self._sums = [old + new for old, new in zip(self._sums, terms, strict=True)]
        self.constants = Work(*self._solve())
        self._compare(cohorts, ranks)

    def _solve(self) -> list[float]:
        """Least squares with no constant below 0; the guess decides what the cohorts leave open."""
        right, (aa, ab, ac, bb, bc, cc) = self._sums[:3], self._sums[3:]
        square = [[aa, ab, ac], [ab, bb, bc], [ac, bc, cc]]
        for i, guess in enumerate(self.guess):
            square[i][i] += TRUST / guess**2
            right[i] += TRUST / guess
        free = [0, 1, 2]
        while True:
            found = _solve([[square[i][j] for j in free] for i in free], [right[i] for i in free])
            lowest = min(range(len(free)), key=lambda i: found[i])
            if found[lowest] >= 0:
                break
            free.pop(lowest)
        constants = [0.0, 0.0, 0.0]
        for i, value in zip(free, found, strict=True):
            constants[i] = value
        return constants

    def _compare(self, cohorts: list[Timed], ranks: int) -> None:
        """Predicted over measured seconds of each rank, smoothed over rounds."""
        predicted, measured = [0.0] * ranks, [0.0] * ranks
        for work, rank, seconds in cohorts:
            predicted[rank] += self.seconds(work)
            measured[rank] += seconds
        old = self.speeds if len(self.speeds) == ranks else [1.0] * ranks
        new = [p / m if m > 0 else o for p, m, o in zip(predicted, measured, old, strict=True)]
        self.speeds = [STEADY * o + (1 - STEADY) * min(max(n, 0.1), 10.0) for o, n in zip(old, new, strict=True)]

    @property
    def rank_speeds(self) -> list[float]:
        """To place by; empty where ranks are alike."""
        return self.speeds if self.speeds and max(self.speeds) > ALIKE * min(self.speeds) else []


def _dot(left: Sequence[float], right: Sequence[float]) -> float:
    return left[0] * right[0] + left[1] * right[1] + left[2] * right[2]


def _solve(square: list[list[float]], right: list[float]) -> list[float]:
    """Gaussian elimination; the matrix is positive definite."""
    size = len(right)
    rows = [[*row, value] for row, value in zip(square, right, strict=True)]
    for i in range(size):
        for j in range(i + 1, size):
            factor = rows[j][i] / rows[i][i]
            rows[j] = [a - factor * b for a, b in zip(rows[j], rows[i], strict=True)]
    found = [0.0] * size
    for i in reversed(range(size)):
        rest = sum(rows[i][j] * found[j] for j in range(i + 1, size))
        found[i] = (rows[i][size] - rest) / rows[i][i]
    return found
