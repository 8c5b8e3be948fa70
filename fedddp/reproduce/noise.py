"""What noise costs: a run for every budget, each tuned on held-out points by itself as in the ranking, and the table.

One number is chosen for each row: the learning rate of the clients' solver; with noise on changes, whose length is the
clip's, the clip. Held-out points lie at the server and belong to nobody; runs that are tried are not counted in ε.
"""

import re
from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from fedddp.reproduce import ranking
from fedddp.reproduce.ranking import METRICS, Entry, Table, chosen

TASKS = {"private_heart": "Heart", "private_fashion": "Fashion-MNIST 10 %"}
FACTORS = (1.0, 0.3, 3.0, 0.1, 10.0, 30.0)
MOST = 90.0  # seconds of one core for a run
CLIPS = {  # of a change, before the factor: of parameters, or of each row of natural parameters
    "private_heart": {"fedavg": 0.3, "pvi": 1.0, "bayes_admm": 3.0},
    "private_fashion": {"fedavg": 0.03},
}
LEVELS = {  # what of a row's name is noisy: settings
    "client": ["privacy.level=client"],
    "virtual client": ["privacy.level=part", "split.virtual=5"],
    "averaged part": ["privacy.level=part", "federation.parts=5", "local.keep=false"],
    "example": ["privacy.level=example", "privacy.clip.gradient=1", "privacy.sampling=poisson"],
}
DAMPING = 0.25  # of virtual clients as of the hospitals
REGION = re.compile(r"(<!-- noise -->\n).*?(<!-- end -->)", re.DOTALL)


class Row(NamedTuple):
    method: str
    level: str  # none, or one of LEVELS
    epsilon: int = 0

    @property
    def label(self) -> str:
        return self.method if self.level == "none" else f"{self.method}, {self.level}s"


METHODS = {"fedavg": ("client", "example"), "pvi": tuple(LEVELS), "bayes_admm": ("client", "example")}
NOISY = [Row(method, level, e) for e in (1, 4, 8) for method, levels in METHODS.items() for level in levels]
ROWS = {
    f"{row.method}-{row.level.replace(' ', '-')}-{row.epsilon}": row
    for row in (*NOISY, *(Row(m, "none") for m in METHODS))
}
# noise on sites needs few parameters for so few clients: the network's posterior does not survive it
ONLY = {
    name: ("private_heart",)
    for name, row in ROWS.items()
    if row.method != "fedavg" and row.level not in ("none", "example")
}


def words(task: str, name: str, seed: int, factor: float) -> list[str]:
    """The settings of one run as on the command line."""
    row = ROWS[name]
    by_clip = row.level not in ("none", "example")
    said = ranking.words(task, row.method, seed, 1.0 if by_clip else factor)
    if row.level == "none":
        return said
    said += [*LEVELS[row.level], f"privacy.epsilon={row.epsilon}"]
    if row.level == "virtual client":
        said.append(f"method.damping={DAMPING}")
    return [*said, f"privacy.clip.all={factor * CLIPS[task][row.method]:g}"] if by_clip else said


def table(names: Sequence[str] = ()) -> Table:
    """All rows, or these; noise asks for rates of its own, so more of them are tried than in the ranking."""
    return Table(tuple(TASKS), names or tuple(ROWS), words, FACTORS, MOST, ONLY)


def markdown(entries: Sequence[Entry]) -> str:
    return "\n\n".join(f"{name}:\n\n{_of_task(entries, task)}" for task, name in TASKS.items())


def filled(text: str, entries: Sequence[Entry]) -> str:
    """A page with its tables anew."""
    return REGION.sub(lambda found: f"{found[1]}{markdown(entries)}\n{found[2]}", text)


def _of_task(entries: Sequence[Entry], task: str) -> str:
    lines = ["| ε | | chosen | seeds | accuracy | NLL | ECE |", "|---|---|---|---|---|---|---|"]
    for name, row in ROWS.items():
        if task not in ONLY.get(name, TASKS):
            continue
        own = [e for e in entries if (e.task, e.method) == (task, name)]
        cells = [str(row.epsilon or "∞"), row.label, *_cells(task, name, own)]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cells(task: str, name: str, own: Sequence[Entry]) -> list[str]:
    factor = chosen(own)
    if factor is None:
        return ["", "", own[-1].reason if own else "not run", "", ""]
    said = words(task, name, 1, factor)
    what = next((word for word in said if word.startswith("privacy.clip.all")), said[2])
    runs = [e.metrics for e in own if e.factor == factor and e.metrics]
    return [f"`{what}`", str(len(runs)), *(_spread([run[metric] for run in runs]) for metric in METRICS)]


def _spread(values: Sequence[float]) -> str:
    return f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")
