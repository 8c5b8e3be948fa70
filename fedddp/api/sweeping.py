"""Sweeps and reports from Python."""

from collections.abc import Iterable, Mapping
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedddp import reports
from fedddp.api.running import RunFailed
from fedddp.jobs import sweep as sweeps
from fedddp.jobs.options import Options
from fedddp.jobs.planned import place, plan
from fedddp.runs.finished import Run
from fedddp.runs.rank import STOPPED

if TYPE_CHECKING:
    import pandas


def sweep(
    experiment: str | None = None,
    grid: Mapping[str, Any] | None = None,
    *,
    cluster: str = "local",
    ranks: int | None = None,
    max_parallel: int | None = None,
    profile: str | None = None,
    out: Path | str | None = None,
    wait: bool = True,
) -> list[Run]:
    """Every combination of a grid such as {"method": ["fedavg", "fedprox"], "seed": range(3)}, as `fedddp sweep`.

    The runs are returned when they have ended; with wait=False, at once. One that was stopped is not `finished`.
    """
    points = _points(grid or {})
    folder = Path(out) if out is not None else place(experiment, points)
    options = Options(cluster, profile, ranks=ranks, max_parallel=max_parallel, out=folder, wait=wait)
    if sweeps.launch(options, experiment, points) not in (0, STOPPED):
        raise RunFailed(
            f"{folder}: not all runs ended well; fedddp.report([...]) and `fedddp status {folder}` say more"
        )
    return [Run(planned.folder, trust=True) for planned in plan(experiment, points, folder)]


def _points(grid: Mapping[str, Any]) -> list[list[str]]:
    choices = [[(key, one) for one in _choices(value)] for key, value in grid.items()]
    return [[f"{key}={_word(value)}" for key, value in point] for point in product(*choices)]


def _choices(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list | tuple | range | set) else [value]


def _word(value: Any) -> str:
    """As on the command line."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def report(*folders: Path | str, out: Path | str | None = None, **options: Any) -> "pandas.DataFrame":
    """A frame with a row for each run below the folders; `out` also writes a table (.md, .csv) or a page (.html).

    Options are those of `fedddp report`: by, at, metrics, best_over, target.
    """
    frame = reports.load(*folders)
    if out is not None:
        reports.write(reports.make(folders, **options), Path(out), ", ".join(map(str, folders)))
    found: pandas.DataFrame = frame
    return found
