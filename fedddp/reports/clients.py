"""How clients fare, one by one, where the runs say so: dots, histograms, and a scatter over their examples."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from fedddp.records import pictures as drawing
from fedddp.reports.index import Array
from fedddp.reports.plate import plate
from fedddp.reports.rows import Row
from fedddp.reports.runs import Record
from fedddp.reports.sections import Section

ROWS = 12  # most settings in a picture
METRICS = 4  # most metrics with a picture of dots; the first has the other two as well
PLAIN = ("test_examples", "loss_before", "loss_after")  # columns over clients that are no metrics


def clients(section: Section) -> Iterator[str]:
    rows = [row for row in section.rows if all(run.clients for run in row.runs)][:ROWS]
    names = [name for name in (rows[0].runs[0].clients["columns"] if rows else ()) if name not in PLAIN]
    if not names:
        return
    yield (
        "<h3>Clients</h3><p>At the last evaluation, on each client's own part of the test set: a dot is a client of "
        'one seed, the bar their median.</p><div class="charts">'
    )
    for metric in names[:METRICS]:
        groups = {row.name: _of_clients(row, metric) for row in rows}
        name = f"{section.title}-clients-{metric}"
        runs = [(row.name, run) for row in rows for run in row.runs]
        data = [[setting, run.config.get("seed"), *one] for setting, run in runs for one in _each(run, metric)]
        head, wide = ["setting", "seed", "client", "examples", metric], drawing.is_wide(groups)
        yield plate(name, drawing.draw_spread(metric, groups), head, data, wide)
    yield from _over_clients(f"{section.title}-clients-by", names[0], rows)
    yield "</div>"


def _over_clients(name: str, metric: str, rows: Sequence[Row]) -> Iterator[str]:
    """How many clients have how much of it, and who they are by their training examples."""
    found = {row.name: [(n, x) for run in row.runs for _, n, x in _each(run, metric) if x is not None] for row in rows}
    pairs = {row: np.array(values, dtype=float).reshape(-1, 2).T for row, values in found.items()}
    if not any(values.size for values in pairs.values()):
        return
    data = [[row, *one] for row, values in found.items() for one in values]
    histogram = drawing.draw_histogram(metric, {row: values for row, (_, values) in pairs.items()})
    scatter = drawing.draw_scatter(metric, {row: (examples, values) for row, (examples, values) in pairs.items()})
    for kind, figure in ((metric, histogram), ("examples", scatter)):
        yield plate(f"{name}-{kind}", figure, ["setting", "examples", metric], data)


def _each(run: Record, metric: str) -> Iterator[tuple[str, int, Any]]:
    """(client, its training examples, its number)."""
    told = run.clients
    return zip(told["names"], told["examples"], told["columns"].get(metric, ()), strict=False)


def _of_clients(row: Row, metric: str) -> Array:
    columns = [run.clients["columns"].get(metric, ()) for run in row.runs]
    return np.array([np.nan if x is None else x for values in columns for x in values], dtype=float)
