"""How far a table has come: each cell met, short by, above by or not run; and the table as Markdown."""

from dataclasses import dataclass
from functools import cache
from typing import Any

from fedddp.config.loading import folder
from fedddp.config.written import read
from fedddp.reports.numbers import Number, more_is_better
from fedddp.reproduce.protocol import Protocol
from fedddp.reproduce.results import Result

KINDS = ("met", "above", "short", "not run", "nothing published")
ROUNDS = "rounds"  # the metric of a column with a target
COUNTS = (ROUNDS, "seconds", "bytes")  # how metrics begin of which less is better

Found = dict[str, dict[str, Result]]  # of one table


@dataclass(frozen=True)
class Cell:
    ours: Number | None
    published: float | None
    deviation: float  # the larger one of ours and the published
    metric: str
    done: bool = True  # its runs; without a number: some of them did not reach the target

    @property
    def sign(self) -> int:
        return 1 if more_is_better(self.metric) and not self.metric.startswith(COUNTS) else -1

    def text(self, value: float | None) -> str:
        """Shares in percent, rounds, seconds and bytes to one digit, all else to two."""
        if value is None:
            return ""
        if self.metric.startswith(COUNTS):
            return f"{value:.1f}"
        return f"{100 * value:.1f}" if "accuracy" in self.metric else f"{value:.2f}"

    @property
    def rounding(self) -> float:
        """Half of the last digit that papers print."""
        if self.metric.startswith(COUNTS):
            return 0.51 if self.metric == ROUNDS else 0.051
        return 0.00051 if "accuracy" in self.metric else 0.0051

    @property
    def gap(self) -> float | None:
        """How much better than published; below 0: worse."""
        if self.ours is None or self.published is None:
            return None
        return self.sign * (self.ours.mean - self.published)

    @property
    def state(self) -> str:
        gap = self.gap
        if self.ours is None:
            return "not run" if not self.done else "met" if self.published is None else "short: not reached"
        if gap is None:
            return "nothing published" if self.metric != ROUNDS else f"above: reached in {self.text(self.ours.mean)}"
        if abs(gap) <= self.deviation + self.rounding:
            return "met"
        return f"short by {self.text(-gap)}" if gap < 0 else f"above by {self.text(gap)}"


def cell(protocol: Protocol, row: str, column: str, found: Found) -> Cell:
    place, result = protocol.columns[column], found.get(row, {}).get(column)
    ours = result.number if result else None
    published = (place.published or {}).get(row)
    if published is None and place.published is not None and place.target is None and not place.best:
        published = _published(protocol, row, column)
    spread = place.deviation.get(row, 0.0)
    own = ours.std if ours and ours.std is not None else 0.0
    metric = place.metric if place.target is None else ROUNDS
    return Cell(ours, published, max(own, spread), metric, result is not None)


def _published(protocol: Protocol, row: str, column: str) -> float | None:
    """What the experiment's file says of the row's method, or of a variant: METHOD_VALUE, where VALUE is a setting."""
    place, settings = protocol.columns[column], protocol.rows[row].set
    file = experiment(place.experiment)
    method = settings["method"]
    blocks = file.get("published", {})
    name = next((n for n in (*(f"{method}_{value}" for value in settings.values()), method) if n in blocks), None)
    at = str(place.at or file["federation"]["rounds"])
    value = blocks[name].get(place.metric, {}).get(at) if name else None
    return None if value is None else float(value)


@cache
def experiment(name: str) -> dict[str, Any]:
    """An experiment's file as it is written: much quicker than the configuration that it makes."""
    return read(folder("experiment") / f"{name}.yaml")


def left(protocol: Protocol, found: Found) -> dict[str, int]:
    """The runs that each row lacks, by the seeds of its results."""
    lacks: dict[tuple[str, str, str], int] = {}
    for row, column in protocol.cells():
        place, result = protocol.columns[column], found.get(row, {}).get(column)
        run = (row, place.experiment, str(place.set))
        lacks[run] = max(lacks.get(run, 0), len(protocol.seeds) - (len(result.seeds) if result else 0))
    return {row: sum(count for (own, *_), count in lacks.items() if own == row) for row in protocol.rows}


def summary(protocol: Protocol, found: Found) -> str:
    """One line: how many cells are met, how many short and the worst of them, how many not run."""
    if protocol.figure:
        return "drawn" if found else "not run"
    cells = {place: cell(protocol, *place, found) for place in protocol.cells()}
    states = {place: one.state for place, one in cells.items()}
    counts = {kind: sum(s.startswith(kind) for s in states.values()) for kind in KINDS}
    text = ", ".join(f"{count} {kind}" for kind, count in counts.items() if count)
    short = {place: one.gap or 0.0 for place, one in cells.items() if states[place].startswith("short")}
    if short:
        row, column = worst = min(short, key=lambda place: short[place])
        text += f" (worst: {row}, {column}, {states[worst]})"
    return f"of {len(cells)}: {text}"


def markdown(protocol: Protocol, found: Found) -> str:
    """Our number and its deviation, the published one beside, and what is not run."""
    head = ["", *(name for column in protocol.columns for name in (column, "published"))]
    lines = [head, ["---"] * len(head)]
    for row in protocol.rows:
        cells = [cell(protocol, row, column, found) for column in protocol.columns]
        lines.append([row, *(text for one in cells for text in (_ours(one), one.text(one.published)))])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def notes(protocol: Protocol, found: Found) -> list[str]:
    """What differs from the protocol, and by when and what the numbers were made."""
    said = dict.fromkeys(r.note for cells in found.values() for r in cells.values() if r.note)
    dates = sorted({result.date for cells in found.values() for result in cells.values()})
    seeds = sorted({len(result.seeds) for cells in found.values() for result in cells.values()})
    when = " to ".join(dict.fromkeys((dates[0], dates[-1]))) if dates else ""
    many = " to ".join(dict.fromkeys((str(seeds[0]), str(seeds[-1])))) if seeds else ""
    run = [f"Runs of {when}, {many} seed{'s' if seeds[-1] > 1 else ''} a cell"] if dates else []
    return [*run, f"`fedddp reproduce {protocol.name}`: {summary(protocol, found)}", *said]


def _ours(one: Cell) -> str:
    if one.ours is None:
        return "not reached" if one.done else "not run"
    spread = "" if one.ours.std is None else f" ± {one.text(one.ours.std)}"
    return f"{one.text(one.ours.mean)}{spread}"
