"""A page for each method: what is said of it by hand, and what its class and two rounds of it show."""

import io
import logging
import re
from collections.abc import Iterator
from contextlib import redirect_stderr, suppress
from functools import cache
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from textwrap import dedent
from typing import Any

import torch
import yaml

from fedddp.bench import methods as costs
from fedddp.checks import purity, small
from fedddp.config.explain import Setting, of_class, usual_solver
from fedddp.core import registry, tree
from fedddp.core.meanings import meanings
from fedddp.exchange.group import Exchange
from fedddp.reports.table import size
from fedddp.reproduce import protocol, ranking, results
from fedddp.rounds.failures import Failed
from fedddp.runs.build import make_federation, make_task

WRITTEN = Path(__file__).with_name("methods.yaml")
WIDE = 104  # letters of an equation that a page has room for
PARAMETERS = 910  # of the network that messages are shown for


@cache
def families() -> list[dict[str, Any]]:
    """As written by hand; whoever is not written of comes last, under a family of their own."""
    found: list[dict[str, Any]] = yaml.safe_load(WRITTEN.read_text())
    silent = set(registry.builtin("method")) - {name for family in found for name in family["methods"]}
    rest = {"family": "Others", "about": "", "methods": {name: {} for name in sorted(silent)}}
    return [*found, rest] if silent else found


def navigation() -> list[Any]:
    named = [{family["family"]: [f"choose/{name}.md" for name in family["methods"]]} for family in families()]
    return ["choose/index.md", *named]


def pages() -> dict[str, str]:
    found = {f"choose/{name}.md": page(name, told) for family in families() for name, told in family["methods"].items()}
    return {"choose/index.md": index(), **found}


def index() -> str:
    lines = [
        "# Choose a method",
        "",
        "All methods that come with fedddp. What a client keeps and sends is counted in two rounds of a small network "
        f"of {PARAMETERS} parameters (one number is 4 bytes), with the method's usual solver. What a round costs is "
        "measured by `fedddp bench methods`, FedAvg's with SGD being 1 (to about a tenth, as its own row shows); a "
        "method's page says on what. How good all are [beside each other](../ranking.md), tuned alike, has a page of "
        "its own.",
    ]
    for family in families():
        lines += ["", f"## {family['family']}", "", family["about"], ""]
        lines += ["| method | idea | a round | a client sends | is sent | keeps |", "|---|---|---|---|---|---|"]
        for name, told in family["methods"].items():
            seen = watched(name)
            amounts = (
                [size(amount) for amount in (seen.bytes_up, seen.bytes_down, seen.bytes_kept)] if seen else [""] * 3
            )
            idea = told.get("idea", first_line(name))
            lines.append("| " + " | ".join([f"[{name}]({name}.md)", idea, times(name), *amounts]) + " |")
    return "\n".join(lines) + "\n"


def page(name: str, told: dict[str, str]) -> str:
    parts = (_words(told), _equations(name), _memories(name), _message(name), _cost(name), _settings(name))
    parts = (*parts, _ranking(name), _results(name))
    return "\n".join([f"# {name}", "", *(line for part in parts for line in part)]) + "\n"


def _words(told: dict[str, str]) -> Iterator[str]:
    if told:
        yield from (told["idea"], "", f"**When to use it.** {told['use']}", "")
    if "holds" in told:
        yield from (f"**What is known to hold**, and tested: {told['holds']}", "")


def _equations(name: str) -> Iterator[str]:
    """What its author wrote above the class: the paper, prose, and equations, which keep their form."""
    yield from ("## Equations", "")
    for part in re.split(r"\n\s*\n", cleandoc(module(name).__doc__ or "")):
        formal = part.startswith(" ") or "<-" in part or "  " in part
        text = re.sub(r"(?<!`)([<*])(?!`)", lambda found: f"&#{ord(found[1])};", part)
        folded = "\n".join(fold(line) for line in dedent(part).splitlines())
        yield from ("```text", folded, "```", "") if formal else (text, "")


def fold(line: str) -> str:
    """A line of equations that is wider than the page breaks in the last gap of two blanks or more."""
    gaps = [gap for gap in re.finditer(r"(?<=\S) {2,}(?=\S)", line) if gap.start() <= WIDE]
    start = re.match(r"\s*(?:\w+(?: \d)?\s{2,})?", line)
    if len(line) <= WIDE or not gaps or start is None or gaps[-1].end() <= start.end():
        return line
    return f"{line[: gaps[-1].start()]}\n{fold(' ' * start.end() + line[gaps[-1].end() :])}"


def _memories(name: str) -> Iterator[str]:
    yield from ("## What is kept", "")
    for title, memory in zip(("server", "a client"), memories(name), strict=True):
        leaves = {key: value for key, value in tree.leaves(memory).items() if value.numel()}
        if not leaves:
            yield f"- {title}: nothing"
            continue
        each = [f"`{key}`{_what(meaning(memory, key))}" for key in leaves]
        yield f"- {title}: {', '.join(each)}"
    yield from ("", "P is the number of parameters, C that of clients computed side by side, K that of all.", "")


def meaning(memory: Any, key: str) -> str:
    """Of `dual`, or of `solver.grad`: as the comment behind the field says."""
    *path, name = key.split(".")
    for part in path:
        memory = getattr(memory, part)
    return meanings(type(memory)).get(name, "")


def _what(comment: str) -> str:
    return f" ({comment})" if comment else ""


def _message(name: str) -> Iterator[str]:
    seen = watched(name)
    if seen is None:
        yield from ("Its usual settings do not suit the small federation that other methods are counted in.", "")
        return
    yield from ("## What is sent", "", "Of each client, in a round; the engine adds up, or gathers:", "", "```text")
    yield from seen.fields
    yield from ("```", "")
    given = f", and {' '.join(small.SETTINGS[name])}" if name in small.SETTINGS else ""
    amounts = f"{size(seen.bytes_up)} up and {size(seen.bytes_down)} down per client and round"
    yield from (f"With {PARAMETERS} parameters{given}: {amounts}.", "")


@cache
def measured() -> dict[str, costs.Cost]:
    return costs.read(costs.file())


def times(name: str) -> str:
    """A round's processor time beside FedAvg's; nothing where it was not measured, or could not be."""
    cost = measured().get(name)
    return f"{cost.ratio:.{1 if cost.ratio >= 10 else 2}f} ×" if cost and not cost.reason else ""


def _cost(name: str) -> Iterator[str]:
    cost = measured().get(name)
    if cost is None:
        return
    yield from ("## What a round costs", "")
    parameters = round(measured()["fedavg"].down / 4)
    network = f"an MLP of {parameters:,} parameters"
    about = f"Fashion-MNIST 10 %, ten unequal clients, {network}, two local epochs, the usual solver"
    if cost.reason:
        yield from (f"Not measured on {about}: {cost.reason}.", "")
        return
    amounts = [size(amount) for amount in (cost.up, cost.down, cost.kept)]
    yield f"**{times(name)}** the processor time of a round of FedAvg with SGD, clients and server together; a client"
    yield f"sends {amounts[0]}, is sent {amounts[1]}, and {amounts[2]} are kept for it. Measured by"
    yield from (f"`fedddp bench methods case={name}`: {about}.", "")


def _settings(name: str) -> Iterator[str]:
    rows = of_class("method", registry.find("method", name))
    yield from ("## Settings", "")
    yield from table(rows) if rows else ["None."]
    yield ""
    usual = usual_solver(name)
    if usual:
        yield from (f"Usual, by `configs/method/{name}.yaml`: `{usual}`.", "")
    run = [f"fedddp run digits method={name}"] if watched(name) else []
    yield from ("```bash", *run, f"fedddp explain method={name}", "```", "")


def table(rows: list[Setting]) -> Iterator[str]:
    yield from ("| key | default | type | meaning |", "|---|---|---|---|")
    for one in rows:
        cells = (f"`{one.key}`", f"`{one.default}`" if one.default else "", one.kind, one.meaning)
        yield f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _ranking(name: str) -> Iterator[str]:
    """The common benchmark: all methods, tuned alike (`fedddp ranking`)."""
    rows = [line for task in ranking.TASKS for line in _task(name, task)]
    if rows:
        yield from ("## On the common benchmark", "")
        alike = "[All methods beside each other](../ranking.md), tuned alike by `fedddp ranking`"
        yield from (f"{alike}; seconds of one core for the whole run.", "")
        yield from ("| experiment | seeds | accuracy | NLL | seconds |", "|---|---|---|---|---|", *rows, "")


def _task(name: str, task: str) -> Iterator[str]:
    own = [one for one in ranking.read(ranking.file()) if (one.task, one.method) == (task, name)]
    best = ranking.chosen(own)
    runs = [one.metrics for one in own if one.metrics and one.factor == best]
    if runs:
        accuracy, nll, seconds = (sum(run[key] for run in runs) / len(runs) for key in ("accuracy", "nll", "seconds"))
        yield f"| `{task}` | {len(runs)} | {100 * accuracy:.1f} | {nll:.3f} | {seconds:.1f} |"


def _results(name: str) -> Iterator[str]:
    """Its rows of the papers' tables, from the file that results.md is written from."""
    found = [line for each in protocol.names() for line in _cells(name, each)]
    if found:
        yield from ("## Its numbers", "")
        yield from ("Accuracy in percent, from [the results](../results.md), which say how they came about.", "")
        yield from ("| table | row | accuracy |", "|---|---|---|", *found, "")


def _cells(name: str, which: str) -> Iterator[str]:
    chosen, measured = protocol.read(which), results.read().get(which, {})
    for title, row in chosen.rows.items():
        found = measured.get(title, {})
        shown = [column for column, one in chosen.columns.items() if one.metric == "accuracy"]
        cells = {column: found[column] for column in shown if column in found}
        if row.set.get("method") == name and cells:
            said = ", ".join(f"{column} {100 * one.number.mean:.1f}" for column, one in cells.items())
            yield f"| {chosen.about} | {title} | {said} |"


def module(name: str) -> Any:
    return import_module(registry.find("method", name).__module__)


def first_line(name: str) -> str:
    return registry.describe("method", name)


@cache
def watched(name: str) -> purity.Seen | None:
    """Two rounds of it in the small federation that `fedddp check` uses; None if it does not last so long."""
    with _quiet(), suppress(Failed):
        return purity.watch(small.load([f"method={name}"], *small.MODELS["mlp"]))
    return None


@cache
def memories(name: str) -> tuple[Any, Any]:
    """The server's and the clients', before the first round."""
    config, cpu = small.load([f"method={name}"], *small.MODELS["mlp"]), torch.device("cpu")
    with _quiet():
        exchange = Exchange.connect(cpu)
        federation = make_federation(config, make_task(config, cpu), exchange)
        return federation.method.init_server(federation.task), federation.store.memory


def _quiet() -> Any:
    logging.getLogger("torch").setLevel(logging.ERROR)
    return redirect_stderr(io.StringIO())
