"""Whether two settings differ: their runs are paired by seed, and the differences are what is tested.

Two tests, both two-sided. The exact sign-flip (permutation) test asks how many of the 2^n ways to give the n
differences their signs have a mean as far from zero. It assumes nothing but that signs are exchangeable, and its p
cannot be below 2 / 2^n: with five seeds or fewer it cannot reach 0.05, whatever the numbers are. The paired t test
assumes that the differences are normal, which so few cannot show; it gives the 95 % interval. p values of several
settings against the same one are also given as Holm corrects them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedddp.reports.numbers import last_three
from fedddp.reports.rows import Row, is_seed
from fedddp.reports.runs import Record

FEW = 6  # seeds from which the exact test can reach 0.05
MOST_EXACT = 16  # seeds up to which all signs are tried


@dataclass(frozen=True)
class Paired:
    """The differences of one setting to another, over the seeds that both have."""

    count: int
    mean: float
    low: float  # of the 95 % interval by t; NaN for fewer than two seeds, or where all differences are alike
    high: float
    p_t: float
    p_exact: float  # NaN for fewer than two seeds, or for too many to try all signs

    @property
    def p(self) -> float:
        """By the exact test where it can say something, else by t."""
        return self.p_exact if FEW <= self.count <= MOST_EXACT else self.p_t

    @property
    def limit(self) -> str:
        """What cannot be said."""
        if self.count == 0:
            return "no seed in common"
        if self.count == 1:
            return "one seed: nothing can be said"
        if self.count < FEW:
            return f"{self.count} seeds: no exact p below {2 / 2**self.count:.2g}; t assumes normal differences"
        return ""


def compare(row: Row, other: Row, metric: str) -> Paired:
    """`row` minus `other`."""
    ours, theirs = _by_seed(row.runs, metric), _by_seed(other.runs, metric)
    return both(np.array([ours[seed] - theirs[seed] for seed in ours if seed in theirs]))


def both(differences: NDArray[np.float64]) -> Paired:
    """Both tests on differences paired by seed."""
    from scipy import stats

    n, nan = len(differences), float("nan")
    if n < 2:
        return Paired(n, float(differences.mean()) if n else nan, nan, nan, nan, nan)
    mean, error = float(differences.mean()), float(differences.std(ddof=1)) / n**0.5
    low = high = p_t = nan
    if error > 0:
        room = float(stats.t.ppf(0.975, n - 1)) * error
        low, high, p_t = mean - room, mean + room, float(2 * stats.t.sf(abs(mean) / error, n - 1))
    return Paired(n, mean, low, high, p_t, sign_flip(differences) if n <= MOST_EXACT else nan)


def sign_flip(differences: NDArray[np.float64]) -> float:
    """The share of all 2^n signs whose mean is at least as far from zero."""
    signs = np.array(list(product((1.0, -1.0), repeat=len(differences))))
    sums = np.abs(signs @ differences)
    return float((sums >= sums[0] * (1 - 1e-12)).mean())


def holm(values: Sequence[float]) -> list[float]:
    """p values corrected for how many there are; NaN stays and is not counted."""
    found, largest = [float("nan")] * len(values), 0.0
    there = sorted((value, place) for place, value in enumerate(values) if value == value)
    for rank, (value, place) in enumerate(there):
        largest = max(largest, min(1.0, value * (len(there) - rank)))
        found[place] = largest
    return found


def _by_seed(runs: Sequence[Record], metric: str) -> dict[Any, float]:
    """The runs' numbers by all their seeds; of runs without a number, none."""
    values = {tuple(item for item in sorted(run.config.items()) if is_seed(item[0])): run for run in runs}
    numbers = {tuple((k, str(v)) for k, v in seeds): last_three(run, metric) for seeds, run in values.items()}
    return {seeds: number for seeds, number in numbers.items() if np.isfinite(number)}
