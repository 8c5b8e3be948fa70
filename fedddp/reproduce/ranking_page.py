"""docs/ranking.md, written from the kept runs, so that no number is copied by hand."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, stdev
from textwrap import wrap
from typing import Any

from fedddp.config.loading import folder
from fedddp.config.written import read as read_yaml
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

HEAD = """# All methods beside each other

Made by `fedddp ranking --docs docs/ranking.md`, {when}; the runs' numbers are in `configs/reproduce/ranking.json`, and
the same command goes on where it was stopped. The settings are those of `configs/experiment/ranking_*.yaml`:

{experiments}

This is cut down so that every method can be run: rounds, epochs and models are smaller than the papers', where methods
meet at other settings ([results](results.md)). The order of two methods here is one of this size and these settings.
All have their usual settings (`configs/method`) but for those named above: one-shot methods have a single round with as
many epochs as the others have in all, some servers take fewer steps, and posteriors of networks are colder.

**Tuning**, the same for all: the usual learning rate of the method's solver times {factors} (on Shakespeare ten times
that), with seed {first}; the highest accuracy on the held-out points wins, of two alike the lower NLL; *of* says how
many of the rates were tried. No other setting was tuned, and no test point was looked at for it. The seeds {seeds} then
run with that rate. Three methods are less blind than the others: how fedep and fedsep count samples, and the usual tau
of fedlap_func_cov, were changed after a first table had shown them diverge, and their rows made again.

Numbers are means of the last three rounds on the test set and then over seeds, ± their deviation; with a posterior over
samples of it. *Own parts* and *worst tenth* are the mean accuracy over clients, and over the worst tenth of them (at
least one), each on its own part of the test set. MB are what all clients send and are sent in the whole run; seconds
are of one core, with reading the data and evaluation. † is judged by each client's own model: its accuracy, NLL and ECE
are the mean over clients on the whole test set, which is not what such a model is for. A run of more than {most:.0f} s
is given up."""


def head(entries: Sequence[Entry]) -> str:
    """What was run, and when: the settings are those of the experiments' files."""
    dates = sorted({entry.date for entry in entries if entry.date})
    when = f"on {' to '.join(dict.fromkeys((dates[0], dates[-1])))}" if dates else "on no date that is known"
    said = {"when": when, "experiments": "\n".join(map(_experiment, TASKS)), "first": SEEDS[0], "most": MOST}
    said["factors"] = ", ".join(f"{factor:g}" for factor in sorted(FACTORS))
    said["seeds"] = ", ".join(str(seed) for seed in sorted({entry.seed for entry in entries}))
    title, *parts = HEAD.format(**said).split("\n\n")
    return "\n\n".join([title, *(part if part.startswith("- ") else wrapped(part) for part in parts)])


def _experiment(task: str) -> str:
    """One experiment's file in a sentence, and what it asks of single methods."""
    written = read_yaml(folder("experiment") / f"{task}.yaml")
    parts = [f"{name} `{_words(written[name])}`" for name in ("data", "split", "model")]
    local, rounds = written["local"], written["federation"]["rounds"]
    work = f"{rounds} rounds of {local['epochs']} epochs in batches of {local['batch_size']}"
    asked: dict[str, list[str]] = {}
    for method, settings in written["methods"].items():
        words = " ".join(f"{part}.{word}" for part, own in settings.items() for word in _words(own).split())
        asked.setdefault(words, []).append(method)
    own = "; ".join(f"{', '.join(methods)} `{words}`" for words, methods in asked.items())
    return item(f"**{NAMES[task]}** (`{task}`): {', '.join(parts)}; {work}. Single methods: {own}.")


def _words(settings: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={value}" for key, value in settings.items())


def item(text: str) -> str:
    return wrapped(f"- {text}", "  ")


def wrapped(text: str, indent: str = "") -> str:
    """At most 120 columns wide."""
    return "\n".join(wrap(text, 120, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False))


def page(entries: Sequence[Entry]) -> str:
    tables = {task: _table(entries, task) for task in TASKS}
    parts = [head(entries), "## All three\n\n" + _overall(tables)]
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
            yield item(f"{NAMES[task]}, `{method}`: {told[method].removeprefix('cannot: ')}")


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
