"""Published numbers, as an experiment's `published:` block holds them: {method: {metric: {"round": number}}}.

A variant of a method is METHOD_VALUE, where VALUE is one of the method's settings: fedbens_last is
method.name=fedbens with method.structure=last.
"""

from typing import Any

from fedddp.reports.rows import Row
from fedddp.reports.runs import Record


def published(row: Row, metric: str, at: int | None) -> float | None:
    """What a paper reports for the row's method and metric, at round `at` or at the run's end."""
    run = row.runs[0]
    point = str(run.config.get("federation.rounds") if at is None else at)
    value = _block(run).get(metric, {}).get(point)
    return None if value is None else float(value)


def _block(run: Record) -> dict[str, Any]:
    """The numbers of the run's variant if there are some, else of its method."""
    method = str(run.config["method.name"])
    values = [value for key, value in run.config.items() if key.startswith("method.") and isinstance(value, str)]
    names = [*(f"{method}_{value}" for value in values), method]
    return next((run.published[name] for name in names if name in run.published), {})
