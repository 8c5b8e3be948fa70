"""What noise costs: a run for every budget, each tuned on held-out points by itself as in the ranking, and the table.

One number is chosen for each row: the learning rate of the clients' solver; with noise on clients' changes, which are
all as long as the clip, the clip. Held-out points lie at the server and belong to nobody; the runs that are tried are
not counted in ε.
"""

import re
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from fedddp.reproduce import ranking
from fedddp.reproduce.ranking import METRICS, Entry, Table, chosen

TASKS = {"private_heart": "Heart", "private_fashion": "Fashion-MNIST 10 %"}
FACTORS = (1.0, 0.3, 3.0, 0.1, 10.0)
CLIPS = {"private_heart": 0.3, "private_fashion": 0.03}  # of a client's change, before the factor
REGION = re.compile(r"(<!-- noise -->\n).*?(<!-- end -->)", re.DOTALL)


class Row(NamedTuple):
    method: str
    level: str  # none, client or example
    epsilon: int = 0

    @property
    def label(self) -> str:
        return self.method if self.level == "none" else f"{self.method}, {self.level}s"


METHODS = {"fedavg": ("client", "example"), "pvi": ("example",), "bayes_admm": ("example",)}
NOISY = [Row(method, level, e) for e in (1, 4, 8) for method, levels in METHODS.items() for level in levels]
ROWS = {f"{row.method}-{row.level}-{row.epsilon}": row for row in (*NOISY, *(Row(m, "none") for m in METHODS))}


def words(task: str, name: str, seed: int, factor: float) -> list[str]:
    """The settings of one run as on the command line."""
    row = ROWS[name]
    by_clip = row.level == "client"
    said = ranking.words(task, row.method, seed, 1.0 if by_clip else factor)
    if row.level == "none":
        return said
    said += [f"privacy.level={row.level}", f"privacy.epsilon={row.epsilon}"]
    if by_clip:
        return [*said, f"privacy.clip.all={factor * CLIPS[task]:g}"]
    return [*said, "privacy.clip.gradient=1", "privacy.sampling=poisson"]


def table(names: Sequence[str] = ()) -> Table:
    """All rows, or these; noise asks for rates of its own, so more of them are tried than in the ranking."""
    return Table(tuple(TASKS), names or tuple(ROWS), words, FACTORS)


def markdown(entries: Sequence[Entry]) -> str:
    return "\n\n".join(f"{name}:\n\n{_of_task(entries, task)}" for task, name in TASKS.items())


def filled(text: str, entries: Sequence[Entry]) -> str:
    """A page with its tables anew."""
    return REGION.sub(lambda found: f"{found[1]}{markdown(entries)}\n{found[2]}", text)


def _of_task(entries: Sequence[Entry], task: str) -> str:
    lines = ["| ε | | chosen | seeds | accuracy | NLL | ECE |", "|---|---|---|---|---|---|---|"]
    for name, row in ROWS.items():
        own = [e for e in entries if (e.task, e.method) == (task, name)]
        cells = [str(row.epsilon or "∞"), row.label, *_cells(task, name, own)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cells(task: str, name: str, own: Sequence[Entry]) -> list[str]:
    factor = chosen(own)
    if factor is None:
        return ["", "", own[-1].reason if own else "not run", "", ""]
    tuned = "privacy.clip.all" if ROWS[name].level == "client" else "local.lr"
    what = next(word for word in words(task, name, 1, factor) if word.startswith(tuned))
    runs = [e.metrics for e in own if e.factor == factor and e.metrics]
    return [f"`{what}`", str(len(runs)), *(_spread([run[metric] for run in runs]) for metric in METRICS)]


def _spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")
