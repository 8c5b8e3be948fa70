"""clients.json: who takes part."""

from collections.abc import Sequence
from typing import Any

from fedddp.core.task import Task

MOST_COUNTED = 10_000  # clients whose classes are counted


def split(task: Task) -> dict[str, Any]:
    """Who has how many examples of which class."""
    counts = task.shards.count(task.data.train.targets.cpu(), task.data.classes)
    sizes = task.shards.num_examples.tolist()
    return {"counts": counts.tolist(), "sizes": sizes, "names": list(task.data.label_names)}


def clients(task: Task, names: Sequence[str]) -> dict[str, Any]:
    """Who takes part: names, examples and, of few enough clients, how many of each class."""
    few, classes = task.num_clients <= MOST_COUNTED, task.data.classes
    dealt = split(task) if few and classes else {"counts": []}
    plain = [str(number) for number in range(classes)] if dealt["counts"] else []
    return {
        "names": list(names) if len(names) == task.num_clients else list(range(task.num_clients)),
        "examples": task.shards.num_examples.tolist(),
        "counts": dealt["counts"],
        "labels": list(task.data.label_names) if plain and task.data.label_names else plain,
    }
