"""docs/ranking.md, written from the kept runs, so that no number is copied by hand."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from statistics import fmean, stdev

from fedddp.reproduce.ranking import FACTORS, MOST, SEEDS, TASKS, Entry, chosen

COLUMNS: dict[str, tuple[str, Callable[[float], str], int]] = {  # name, as it is written, and which way is better
    "accuracy": ("accuracy", lambda value: f"{100 * value:.1f}", 1),
    "nll": ("NLL", lambda value: f"{value:.3f}", -1),
    "ece": ("ECE", lambda value: f"{value:.3f}", -1),
    "own_part": ("own parts", lambda value: f"{100 * value:.1f}", 1),
    "worst_tenth": ("worst tenth", lambda value: f"{100 * value:.1f}", 1),
    "megabytes": ("MB", lambda value: f"{value:.3g}", -1),
    "seconds": ("seconds", lambda value: f"{value:.1f}", -1),
}
NAMES = {
    "ranking_heart": "Heart",
    "ranking_fashion": "Fashion-MNIST 10 %",
    "ranking_shakespeare": "Shakespeare by role",
}
OWN = ("local", "ditto", "pfedbayes")  # judged by each client's own model
Numbers = dict[str, list[float]]  # a value for each seed

HEAD = f"""# All methods beside each other

Made by `fedddp ranking --docs docs/ranking.md`; the runs' numbers are in `configs/reproduce/ranking.json`, and the same
command goes on where it was stopped. The settings are those of `configs/experiment/ranking_*.yaml`:

- **Heart**: four hospitals, logistic regression, 20 rounds of 2 epochs, batch 8; 80 of 486 points held out.
- **Fashion-MNIST 10 %**: ten unequal clients (Dirichlet 0.5), an MLP 784-64-10, 10 rounds of 2 epochs, batch 32; 600 of
  6,000 points held out.
- **Shakespeare by role**: 30 roles, a tenth of their windows of 10 letters, an LSTM with 32 units, 10 rounds of 2
  epochs, batch 8; 400 windows held out.

This is cut down so that every method can be run: rounds, epochs and models are smaller than the papers', where
methods meet at other settings (docs/results.md). One-shot methods (dense, fedbens, fedfisher, ot_fusion) have one round
with as many epochs as the others have in all; fedbens has three members with diagonal curvature and 100 server steps,
fedlap_func 200 server steps in a round, and dense on Fashion-MNIST 20 epochs of distillation.

**Tuning**, the same for all: the usual learning rate of the method's solver (`configs/method`) times
{", ".join(f"{factor:g}" for factor in sorted(FACTORS))}, with seed {SEEDS[0]}; the highest accuracy on the held-out
points wins, of two alike the lower NLL; *of* says how many of the rates are tried so far. No other setting was tuned,
and no test point was looked at for it.

Numbers are means of the last three rounds on the test set and then over seeds, ± their deviation; with a posterior over
samples of it. *Own parts* and *worst tenth* are the mean accuracy over clients, and over the worst tenth of them (at
least one), each on its own part of the test set. MB are what all clients send and are sent in the whole run; seconds
are of one core, with evaluation. † is judged by each client's own model: its accuracy, NLL and ECE are the mean over
clients on the whole test set, which is not what such a model is for. A run of more than {MOST:.0f} s is given up."""


def page(entries: Sequence[Entry]) -> str:
    tables = {task: _table(entries, task) for task in TASKS}
    parts = [HEAD, "## All three\n\n" + _overall(tables)]
    for task, table in tables.items():
        tried = Counter(e.method for e in entries if e.task == task and e.seed == SEEDS[0])
        parts.append(f"## {NAMES[task]}\n\n{_markdown(table, _factors(entries, task), tried)}")
    parts.append("## What was not run\n\n" + "\n".join(_reasons(entries)))
    return "\n\n".join(parts) + "\n"


def _table(entries: Sequence[Entry], task: str) -> dict[str, Numbers]:
    """Each method's numbers with the chosen rate, those of the highest accuracy first."""
    found: dict[str, Numbers] = {}
    for method, factor in _factors(entries, task).items():
        runs = [e for e in entries if (e.task, e.method, e.factor) == (task, method, factor) and e.metrics]
        found[method] = {name: [e.metrics[name] for e in runs if name in e.metrics] for name in COLUMNS}
    return dict(sorted(found.items(), key=lambda item: -fmean(item[1]["accuracy"])))


def _factors(entries: Sequence[Entry], task: str) -> dict[str, float]:
    methods = sorted({e.method for e in entries if e.task == task})
    found = {method: chosen([e for e in entries if (e.task, e.method) == (task, method)]) for method in methods}
    return {method: factor for method, factor in found.items() if factor is not None}


def _markdown(table: dict[str, Numbers], factors: dict[str, float], tried: Counter[str]) -> str:
    lines = [["method", *(name for name, _, _ in COLUMNS.values()), "rate", "of", "seeds"]]
    lines.append(["---"] * len(lines[0]))
    for method, numbers in table.items():
        cells = [_cell(numbers[name], text) for name, (_, text, _) in COLUMNS.items()]
        lines.append(
            [_name(method), *cells, f"× {factors[method]:g}", str(tried[method]), str(len(numbers["accuracy"]))]
        )
    return _lines(lines)


def _overall(tables: dict[str, dict[str, Numbers]]) -> str:
    """Mean places over the data sets that a method could run, of all methods that were run there."""
    places: dict[str, dict[str, list[float]]] = {}
    for table in tables.values():
        for name, (_, _, sign) in COLUMNS.items():
            there = {method: fmean(numbers[name]) for method, numbers in table.items() if numbers[name]}
            order = sorted(there.values(), reverse=sign > 0)
            for method, value in there.items():
                places.setdefault(method, {}).setdefault(name, []).append(1 + order.index(value))
    shown = [name for name in COLUMNS if any(name in own for own in places.values())]
    lines = [["method", *(f"place by {COLUMNS[name][0]}" for name in shown), "data sets"]]
    lines.append(["---"] * len(lines[0]))
    for method, own in sorted(places.items(), key=lambda item: (-len(item[1]["nll"]), fmean(item[1]["nll"]))):
        cells = [f"{fmean(own[name]):.1f}" if name in own else "" for name in shown]
        lines.append([_name(method), *cells, str(len(own["nll"]))])
    head = "Mean places by each number, in the order of NLL; methods that cannot run everything come last."
    return f"{head}\n\n{_lines(lines)}"


def _reasons(entries: Sequence[Entry]) -> Iterator[str]:
    """Each method without a number on a data set, once for each reason."""
    for task in TASKS:
        ran = set(_factors(entries, task))
        told: dict[str, str] = {e.method: e.reason for e in entries if e.task == task and e.reason}
        for method in sorted(told.keys() - ran):
            yield f"- {NAMES[task]}, `{method}`: {told[method].removeprefix('cannot: ')}"


def _cell(values: Sequence[float], text: Callable[[float], str]) -> str:
    if not values:
        return ""
    return text(fmean(values)) + (f" ± {text(stdev(values))}" if len(values) > 1 else "")


def _name(method: str) -> str:
    return f"`{method}`{' †' if method in OWN else ''}"


def _lines(rows: Sequence[Sequence[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in rows)


def line(entry: Entry) -> str:
    """One run, for whoever waits."""
    numbers = [f"{COLUMNS[n][0]} {COLUMNS[n][1](v)}" for n, v in entry.metrics.items() if n in COLUMNS]
    said = "  ".join(numbers) or entry.reason
    return f"{NAMES.get(entry.task, entry.task)}  {entry.method}  seed {entry.seed}  × {entry.factor:g}  {said}"
