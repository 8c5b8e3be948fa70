"""client_metrics.jsonl: a table over clients for every evaluation, and what its columns say on the whole.

A line is {"round": 10, "parts": ..., "unseen": 0, "columns": {"test_examples": [...], "accuracy": [...], ...}, ...}
with a number for each client in each column, null where there is none. docs/clients.md has the columns.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import ceil, isfinite
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedddp.records.metrics import read_metrics

FILE = "client_metrics.jsonl"
BETTER_HIGH = ("accuracy", "recall_at_5", "micro_f1")  # of all other metrics a low number is good
PLAIN = ("test_examples", "loss_before", "loss_after")  # columns that are no metrics
SUMMARIES = ("mean", "median", "worst_tenth", "spread")


@dataclass(frozen=True)
class Table:
    """A row for each client."""

    columns: Mapping[str, Tensor]  # [K] float64, NaN where there is no number
    parts: str  # digest of who holds which test examples
    unseen: int = 0  # the last rows, of clients that never train

    @property
    def metrics(self) -> dict[str, Tensor]:
        return {name: values for name, values in self.columns.items() if name not in PLAIN}

    def record(self, finished: int) -> dict[str, Any]:
        """A line of client_metrics.jsonl."""
        columns = {name: [x if isfinite(x) else None for x in values.tolist()] for name, values in self.columns.items()}
        return {"round": finished, "parts": self.parts, "unseen": self.unseen, "columns": columns}

    @classmethod
    def of(cls, record: Mapping[str, Any]) -> "Table":
        columns = {
            name: torch.tensor([torch.nan if x is None else x for x in v], dtype=torch.float64)
            for name, v in record["columns"].items()
        }
        return cls(columns, record["parts"], record["unseen"])

    def numbers(self, alone: "Table | None" = None) -> dict[str, float]:
        """What goes beside the round's other metrics; clients that never train have numbers of their own."""
        trained = len(next(iter(self.columns.values()))) - self.unseen
        found: dict[str, float] = {}
        for name, values in self.metrics.items():
            for group, rows in (("clients", values[:trained]), ("unseen", values[trained:])):
                found |= {f"{group}_{name}_{what}": number for what, number in summary(name, rows)}
        return found if alone is None else found | self.worse_than(alone)

    def worse_than(self, alone: "Table") -> dict[str, float]:
        """The share of clients worse off than in another run, by the first metric of each kind of model."""
        name, other = next(iter(alone.metrics.items()))
        found = {}
        for kind, values in self.metrics.items():
            both = values.isfinite() & other.isfinite()
            if kind.endswith(name) and bool(both.any()):
                worse = values < other if name in BETTER_HIGH else values > other
                prefix = kind.removesuffix(name)
                found[f"{prefix}worse_than_alone"] = float(worse[both].double().mean())
        return found


def summary(name: str, values: Tensor) -> Iterator[tuple[str, float]]:
    """Mean, median, mean of the worst tenth (at least one client) and deviation over the clients that have a number."""
    there = values[values.isfinite()].sort().values
    if not len(there):
        return
    high = name.endswith(BETTER_HIGH)
    worst = there[: ceil(len(there) / 10)] if high else there[-ceil(len(there) / 10) :]
    half = len(there) // 2
    middle = there[half] if len(there) % 2 else (there[half - 1] + there[half]) / 2
    yield "mean", float(there.mean())
    yield "median", float(middle)
    yield "worst_tenth", float(worst.mean())
    yield "spread", float(there.std(correction=0))


def read_tables(folder: Path) -> dict[int, Table]:
    """Every evaluation's table in a run's folder, by its round."""
    return {record["round"]: Table.of(record) for record in read_metrics(folder / FILE)}


def read_alone(folder: str, parts: str) -> Table | None:
    """The last table of the run `evaluation.alone`; `parts`: the digest of this run's own."""
    if not folder:
        return None
    tables = read_tables(Path(folder))
    if not tables:
        raise ValueError(
            f"evaluation.alone={folder}: no {FILE} there; make it with method=local evaluation.clients=server"
        )
    last = tables[max(tables)]
    if last.parts != parts:
        raise ValueError(
            f"evaluation.alone={folder}: its clients hold other test examples; use one of the same data, split, seeds"
        )
    return last
