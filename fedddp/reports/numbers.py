"""What is computed from runs: the mean of the last three rounds, rounds to a target, mean and deviation over seeds."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from fedddp.reports.index import Array
from fedddp.reports.runs import Record

LAST = 3  # rounds that a reported number is the mean of, as in the published tables
# how the names of such metrics end, those of the least and greatest member (NAME_min, NAME_max) aside
LESS_IS_BETTER = ("nll", "ece", "brier", "rmse", "loss", "perplexity", "residual", "missing", "objective")


@dataclass(frozen=True)
class Number:
    """Mean and sample deviation over the runs of a row that have a value."""

    mean: float
    std: float | None  # of one run there is none
    count: int  # runs that have a value
    runs: int  # of the row

    @classmethod
    def of(cls, values: Iterable[float]) -> "Number | None":
        """None if no run has a value."""
        every = np.array(list(values), dtype=np.float64)
        there = every[np.isfinite(every)]
        if len(there) == 0:
            return None
        return cls(float(there.mean()), float(there.std(ddof=1)) if len(there) > 1 else None, len(there), len(every))


@dataclass(frozen=True)
class Reading:
    """How numbers are read off runs, where a table's paper has a rule of its own."""

    best_of_three: bool = False  # the best of the last three rounds instead of their mean
    window: int = 1  # rounds whose running mean has to reach the target
    every_run: bool = False  # no number of rounds to the target unless all runs of the row reach it


MEANS = Reading()


def last_three(run: Record, metric: str, at: int | None = None, best: bool = False, window: int = LAST) -> float:
    """The mean (or the best) over rounds at - 2, at - 1 and at, the end if not given; NaN if the run is not so far.

    With another window, over so many.
    """
    rounds, values = run.series(metric)
    values = values[np.isin(rounds, averaged(run, metric, at, window))]
    if not len(values):
        return float("nan")
    return float(values.mean() if not best else values.max() if more_is_better(metric) else values.min())


def averaged(run: Record, metric: str, at: int | None = None, window: int = LAST) -> list[int]:
    """The rounds that `last_three` averages: where one of the three was not evaluated, the last three that were."""
    rounds, _ = run.series(metric)
    end = _end(run)
    if not len(rounds) or (at is not None and end < at):
        return []
    found = [int(number) for number in rounds[rounds <= (at or end)]]
    return found[-window:]


def meant(run: Record, at: int | None = None) -> list[int]:
    """The rounds that a number at round `at` should be the mean of."""
    last = at or _end(run)
    return list(range(max(1, last - LAST + 1), last + 1))


def _end(run: Record) -> int:
    return int(run.column("round")[-1]) if len(run.values) else 0


def rounds_to(run: Record, target: float, metric: str = "accuracy", window: int = 1) -> float:
    """The first round at which the mean of the last `window` evaluated ones is as good as the target; NaN if none."""
    rounds, values = run.series(metric)
    if len(values) < window:
        return float("nan")
    if window > 1:
        rounds, values = rounds[window - 1 :], np.convolve(values, np.full(window, 1 / window), "valid")
    good = values >= target if more_is_better(metric) else values <= target
    return float(rounds[good][0]) if good.any() else float("nan")


def total(run: Record, name: str) -> float:
    """The sum over all rounds; NaN if no round has it."""
    _, values = run.series(name)
    return float(values.sum()) if len(values) else float("nan")


def sent(run: Record, way: str) -> float:
    """Bytes that all clients sent up or were sent down; NaN if it was not counted."""
    values = run.column("active") * run.column(f"bytes_{way}")
    return float(values.sum()) if len(values) else float("nan")


def more_is_better(metric: str) -> bool:
    return not metric.removesuffix("_min").removesuffix("_max").endswith(LESS_IS_BETTER)


def curve(runs: list[Record], metric: str) -> tuple[Array, Array, Array]:
    """Rounds that all runs have, and over the runs the mean and the deviation (0 for one run); NaN if not finite."""
    series = [dict(zip(*run.series(metric), strict=True)) for run in runs]
    rounds = np.array(sorted(set.intersection(*(set(s) for s in series)))) if series else np.zeros(0)
    values = np.array([[s[r] for r in rounds] for s in series]).reshape(len(series), len(rounds))
    values[~np.isfinite(values)] = np.nan
    spread = values.std(0, ddof=1) if len(runs) > 1 else np.zeros(len(rounds))
    return rounds, values.mean(0) if len(runs) else rounds, spread
