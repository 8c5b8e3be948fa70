"""clients.json: who takes part."""

from collections.abc import Sequence
from typing import Any

from fedddp.config.loading import Config
from fedddp.core.data import Dataset
from fedddp.core.shards import Shards
from fedddp.core.task import Task
from fedddp.evaluation.parts import dealt_numbers

MOST_COUNTED = 10_000  # clients whose classes are counted


def split(task: Task, given: Sequence[str] = ()) -> dict[str, Any]:
    """Who has how many examples of which class; `clients` are their names. Those who never train come last."""
    counts = task.everyone.count(task.data.train.targets.cpu(), task.data.classes)
    sizes = task.everyone.num_examples.tolist()
    return {
        "counts": counts.tolist(),
        "sizes": sizes,
        "names": list(task.data.label_names),
        "clients": names(task, given),
    }


def present(away: Sequence[int], count: int) -> list[int]:
    """The numbers, in the split, of the `count` clients that are there."""
    return [number for number in range(count + len(away)) if number not in away]


def called(config: Config, task: Task) -> Sequence[str]:
    """The names that clients were given, in the order of the task's; where some are away, their numbers at least."""
    away, given = config.federation.without, config.values["split"].get("names", ())
    if (virtual := config["split.virtual"]) > 1:
        given = [f"{name}/{part}" for name in given for part in range(virtual)]
    numbers = dealt_numbers(task.everyone.num_clients, task.unseen.num_clients, config.seed_of("split")).tolist()
    if away:
        numbers = present(away, task.num_clients)
    if len(given) == len(numbers) + len(away):
        return [given[number] for number in numbers]
    return natural(task.everyone, task.data) or [str(number) for number in numbers] if away else []


def names(task: Task, given: Sequence[str] = ()) -> list[str]:
    """What people call each client: as it was given, or as the data says whose its examples are; or nothing."""
    return list(map(str, given)) if len(given) == len(task.everyone) else natural(task.everyone, task.data)


def natural(shards: Shards, data: Dataset) -> list[str]:
    """Of clients that are the data's own, each with a name of its own there; else none."""
    owners = data.train.clients
    if owners is None or not data.client_names or shards.num_clients > MOST_COUNTED:
        return []
    found = [owners[part].unique() for part in shards]
    named = {data.client_names[int(part[0])] for part in found if len(part) == 1}
    return [data.client_names[int(part[0])] for part in found] if len(named) == len(found) else []


def clients(task: Task, given: Sequence[str]) -> dict[str, Any]:
    """Who takes part: names, examples and, of few enough clients, how many of each class."""
    total, classes = task.everyone.num_clients, task.data.classes
    few = total <= MOST_COUNTED
    dealt = split(task) if few and classes else {"counts": []}
    plain = [str(number) for number in range(classes)] if dealt["counts"] else []
    return {
        "names": names(task, given) or list(range(total)),
        "examples": task.everyone.num_examples.tolist(),
        "counts": dealt["counts"],
        "labels": list(task.data.label_names) if plain and task.data.label_names else plain,
        "unseen": task.unseen.num_clients,
    }
