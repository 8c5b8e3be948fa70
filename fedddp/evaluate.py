"""Metrics on the test set, spread over ranks in fixed chunks and added exactly, because they may steer a run."""

from collections.abc import Iterator

import torch
from torch import Tensor

from fedddp.data import Examples
from fedddp.exchange import Exchange
from fedddp.reduce import Ledger, Mean, Message, Sum
from fedddp.store import ClientStore
from fedddp.task import Task

CHUNK = 1000


def evaluate(task: Task, exchange: Exchange, models: Tensor, examples: Examples | None = None) -> dict[str, float]:
    """Metrics of the averaged prediction of models [M, P]."""
    return task.objective.metrics(_tally(task, exchange, models, task.data.test if examples is None else examples))


def evaluate_members(
    task: Task, exchange: Exchange, models: Tensor, examples: Examples | None = None
) -> dict[str, float]:
    """The first metric (accuracy, where there is one) of the least and of the greatest single model of [M, P]."""
    found = [evaluate(task, exchange, model.unsqueeze(0), examples) for model in models]
    name = next(iter(found[0]))
    values = [metrics[name] for metrics in found]
    return {f"{name}_min": min(values), f"{name}_max": max(values)}


def reliability(task: Task, exchange: Exchange, models: Tensor) -> dict[str, list[float]]:
    """Test examples in each bin of confidence, and the sums of confidence and of right answers; {} in a regression."""
    bins = _tally(task, exchange, models, task.data.test).get("bins")
    return {} if bins is None else dict(zip(("count", "confidence", "right"), bins.tolist(), strict=True))


def _tally(task: Task, exchange: Exchange, models: Tensor, examples: Examples) -> dict[str, Tensor]:
    chunks = list(_chunks(len(examples)))
    empty = task.objective.tally(*_predict(task, models, examples, slice(0, 0)))
    parts: list[Message] = [{name: Sum(value.unsqueeze(0)) for name, value in empty.items()}]
    for chunk in chunks[exchange.rank :: exchange.world_size]:
        tally = task.objective.tally(*_predict(task, models, examples, chunk))
        parts.append({name: Sum(value.unsqueeze(0)) for name, value in tally.items()})
    return add_up(exchange, parts, len(chunks), task.device)


def evaluate_clients(
    task: Task, exchange: Exchange, store: ClientStore, examples: Examples | None = None
) -> dict[str, float]:
    """The mean over clients of the metrics of each client's own model."""
    examples, names = task.data.test if examples is None else examples, [""]
    parts: list[Message] = []
    for theta in store.memory.theta:
        tallies = [task.objective.tally(*_predict(task, theta[None], examples, c)) for c in _chunks(len(examples))]
        metrics = task.objective.metrics({n: sum(t[n] for t in tallies) for n in tallies[0]})  # type: ignore[misc]
        names = list(metrics)
        parts.append({"metrics": Mean(torch.tensor([list(metrics.values())], dtype=torch.float64))})
    if not parts:  # a rank without clients weighs nothing
        empty = task.objective.metrics(task.objective.tally(*_predict(task, task.initial[None], examples, slice(0, 1))))
        names = list(empty)
        parts.append({"metrics": Mean(torch.zeros(1, len(names), dtype=torch.float64), weight=0.0)})
    total = add_up(exchange, parts, task.num_clients, torch.device("cpu"))
    return dict(zip(names, total["metrics"].tolist(), strict=True))


def add_up(exchange: Exchange, parts: list[Message], most: int, device: torch.device) -> dict[str, Tensor]:
    """The exact sum over all ranks of additive parts: one or more on each rank, at most `most` that are not zero."""
    ledger = Ledger(slots=0)
    for part in parts:
        ledger.add(part, torch.zeros(0, dtype=torch.long))
    scales = exchange.agree(ledger.exponents())
    return ledger.decode(exchange.add(ledger.encode(scales, most, device)), scales, most)


def _chunks(count: int) -> Iterator[slice]:
    for start in range(0, count, CHUNK):
        yield slice(start, min(start + CHUNK, count))


def _predict(task: Task, models: Tensor, examples: Examples, chunk: slice) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        outputs = (task.outputs(theta, examples.inputs[chunk]) for theta in models)
        probabilities = sum(task.objective.probabilities(output) for output in outputs) / len(models)
    assert isinstance(probabilities, Tensor)
    return probabilities, examples.targets[chunk]
