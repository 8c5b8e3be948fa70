"""Methods on texts beside each other: adapters on a pretrained model, and a small GPT from scratch.

Made as the ranking is: one number is chosen for each row, its clients' learning rate, by the accuracy on held-out
texts with the first seed; then all seeds run with it. Numbers are of the last round. Bytes are those of a round of all
clients, up and down.
"""

from collections.abc import Sequence
from statistics import fmean, stdev
from typing import NamedTuple

from fedddp.config import loading as configuration
from fedddp.reproduce.ranking import SEEDS, Entry, Table, chosen

FACTORS = (1.0, 3.0)  # of a row's usual rate
MOST = 900.0  # seconds of one core for a run
COLD = ["method.temperature=0.01"]  # as for other networks
BY_ADAM = ["local.name=adam", "local.keep=true"]
BY_IVON = ["local.name=ivon", "local.hess_init=1.0", "local.beta2=0.999", *COLD]
BY_LAPLACE = ["local.name=laplace", "local.point=adam", "local.samples=1", "local.keep=true", *COLD]
WHOLE = 22_720_916  # parameters of the pretrained model with its new layer
DIGITS = {"accuracy": 1, "nll": 3, "ece": 3, "entropy": 2, "ood_entropy": 2}


class Row(NamedTuple):
    method: str
    rate: float  # the usual one
    more: list[str]  # settings


ROWS = {
    "speeches": {
        "FedAvg": Row("fedavg", 0.002, BY_ADAM),
        "FFA-LoRA": Row("fedavg", 0.002, [*BY_ADAM, "model.lora.train=B"]),
        "FLoRA": Row("fedavg", 0.002, [*BY_ADAM, "model.lora.train=stack"]),
        "FedProx": Row("fedprox", 0.002, BY_ADAM),
        "FedLap-Cov": Row("fedlap_cov", 0.002, BY_LAPLACE),
        "PVI": Row("pvi", 0.1, BY_IVON),
        "BayesADMM": Row("bayes_admm", 0.1, BY_IVON),
    },
    "letters": {
        "FedAvg": Row("fedavg", 0.002, BY_ADAM),
        "BayesADMM": Row("bayes_admm", 0.03, [*BY_IVON, "local.hess_init=0.1"]),
    },
}


def words(task: str, name: str, seed: int, factor: float) -> list[str]:
    """The settings of one run as on the command line."""
    row = ROWS[task][name]
    return [f"method={row.method}", f"seed={seed}", *row.more, f"local.lr={factor * row.rate:g}"]


def table(names: Sequence[str] = ()) -> Table:
    """All rows, or these."""
    every = list(dict.fromkeys(name for rows in ROWS.values() for name in rows))
    only = {name: [task for task, rows in ROWS.items() if name in rows] for name in every}
    return Table(tuple(ROWS), names or every, words, FACTORS, MOST, last=1, only=only)


def markdown(entries: Sequence[Entry]) -> str:
    return "\n\n".join(f"{task}:\n\n{_of(entries, task)}" for task in ROWS)


def filled(text: str, entries: Sequence[Entry]) -> str:
    """A page with its tables anew."""
    for task in ROWS:
        head, mark, rest = text.partition(f"<!-- {task} -->\n")
        if mark:
            text = f"{head}{mark}{_of(entries, task)}\n<!-- end -->{rest.partition('<!-- end -->')[2]}"
    return text


def _of(entries: Sequence[Entry], task: str) -> str:
    rows = [_cells(entries, task, name) for name in ROWS[task]]
    head = ["", "rate", "seeds", "accuracy %", "NLL", "ECE", "entropy", "on unseen plays", "MB a round", "of the whole"]
    used = [place for place in range(len(head)) if place == 0 or any(row[place] for row in rows)]
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line[place] for place in used) + " |" for line in lines)


def _cells(entries: Sequence[Entry], task: str, name: str) -> list[str]:
    own = [e for e in entries if (e.task, e.method) == (task, name)]
    factor = chosen(own)
    if factor is None:
        return [name, "", "", own[-1].reason if own else "not run", *[""] * 6]
    runs = [e.metrics for e in own if e.factor == factor and e.metrics and e.seed in SEEDS]
    found = {key: [run[key] for run in runs if key in run] for key in DIGITS}
    found["accuracy"] = [100 * value for value in found["accuracy"]]
    config = configuration.load(task, [])
    sent = fmean(run["megabytes"] for run in runs) / config.federation.rounds
    whole = 2 * 4 * WHOLE * config["data.clients"] / 1e6  # in float32, up and down
    share = f"1/{whole / sent:.0f}" if task == "speeches" else ""
    numbers = [_spread(values, DIGITS[key]) for key, values in found.items()]
    return [name, f"{factor * ROWS[task][name].rate:g}", str(len(runs)), *numbers, f"{sent:.2f}", share]


def _spread(values: Sequence[float], digits: int) -> str:
    if not values:
        return ""
    return f"{fmean(values):.{digits}f}" + (f" ± {stdev(values):.{digits}f}" if len(values) > 1 else "")
