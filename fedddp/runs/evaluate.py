"""Metrics on the test set, spread over ranks in fixed chunks and added exactly, because they may steer a run."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from fedddp.core.data import Examples
from fedddp.core.objective import CrossEntropy, NextToken
from fedddp.core.registry import find
from fedddp.core.task import Task
from fedddp.exchange.group import Exchange
from fedddp.exchange.messages import Gather, Mean, Message, Sum
from fedddp.exchange.reduce import Field, Reduction
from fedddp.rounds.federate import Federation
from fedddp.runs.posterior import Samples, auroc, entropy

CHUNK = 1000  # most examples at a time
ROOM = 1 << 28  # bytes that a chunk's outputs, or what a layer makes of it, may take


class Models(Protocol):
    """Parameter vectors [P] whose predictions are averaged: a tensor [M, P], or samples made on the way."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Tensor]: ...


@dataclass
class Evaluator:
    """What a run reports of its server after a round.

    A method with a posterior is judged at the mean and, as averaged_*, by averaging `samples`
    samples. With `ood` inputs, ood_auroc tells how well predictive entropy tells them from the test set.
    """

    federation: Federation
    samples: int
    ood: Examples | None = None

    @property
    def by_client(self) -> bool:
        return self.federation.own_models() is not None

    def __call__(self, server: Any, finished: int) -> dict[str, float]:
        found = self._metrics(server, finished, self.federation.task.data.test)
        if (held := self.federation.task.data.validation) is not None:
            chosen = self._metrics(server, finished, held)
            found |= {f"validation_{name}": value for name, value in chosen.items()}
        if self.ood is not None and not self.by_client:
            for prefix, models in self.kinds(server, finished).items():
                inside, outside = (self._entropies(models, e) for e in (self.federation.task.data.test, self.ood))
                found[f"{prefix}ood_auroc"] = auroc(inside, outside)
        return found

    def point(self, server: Any) -> Tensor:
        """[M, P] a method's ensemble, or the one model that it has."""
        return self.federation.method.models(server)

    def kinds(self, server: Any, finished: int) -> dict[str, Models]:
        """What to predict with, by the prefix of its metrics: the method's point or ensemble, and its posterior."""
        kinds: dict[str, Models] = {"": self.point(server)}
        lam = self.federation.method.posterior(server)
        if lam is not None and self.samples:
            kinds["averaged_"] = Samples(lam, self.samples, self.federation.task.streams.seed, finished)
        return kinds

    def pictures(self, server: Any, finished: int) -> tuple[dict[str, dict[str, list[float]]], dict[str, Tensor]]:
        """How sure the model is: numbers for reliability diagrams, and the entropy of every test prediction."""
        task, exchange = self.federation.task, self.federation.exchange
        if self.by_client or not isinstance(task.objective, CrossEntropy):
            return {}, {}
        kinds = self.kinds(server, finished)
        bins = {f"{prefix}reliability": reliability(task, exchange, models) for prefix, models in kinds.items()}
        if isinstance(task.objective, NextToken):  # a row for each token: too many for a histogram
            return bins, {}
        sets = {"entropy": task.data.test} | ({"ood_entropy": self.ood} if self.ood is not None else {})
        spread = {f"{p}{name}": self._entropies(m, e) for p, m in kinds.items() for name, e in sets.items()}
        return bins, spread

    def _metrics(self, server: Any, finished: int, examples: Examples) -> dict[str, float]:
        task, exchange = self.federation.task, self.federation.exchange
        own = self.federation.own_models()
        if own is not None:
            return evaluate_clients(task, exchange, own, examples)
        found: dict[str, float] = {}
        for prefix, models in self.kinds(server, finished).items():
            found |= {f"{prefix}{n}": v for n, v in evaluate(task, exchange, models, examples).items()}
            if isinstance(models, Tensor) and len(models) > 1:
                found |= evaluate_members(task, exchange, models, examples)
        return found

    def _entropies(self, models: Models, examples: Examples) -> Tensor:
        return entropies(self.federation.task, self.federation.exchange, models, examples)


def other_data(name: str, task: Task, root: str) -> Examples | None:
    """The test inputs of the data set `evaluation.ood`, which the model is to recognise as strange."""
    if not name:
        return None
    if not isinstance(task.objective, CrossEntropy) or isinstance(task.objective, NextToken):
        raise ValueError(f"evaluation.ood={name}: needs a classification, where predictions have an entropy")
    inputs = find("data", name)(root=root).load().test.inputs
    if inputs.shape[1:] != task.data.test.inputs.shape[1:]:
        raise ValueError(
            f"evaluation.ood={name}: its inputs are {tuple(inputs.shape[1:])}, the model is made for "
            f"{tuple(task.data.test.inputs.shape[1:])}; name a data set of the same shape"
        )
    device = task.data.test.inputs.device
    return Examples(inputs.to(device), torch.zeros(len(inputs), dtype=torch.long, device=device))


def evaluate(task: Task, exchange: Exchange, models: Models, examples: Examples | None = None) -> dict[str, float]:
    """Metrics of the averaged prediction of models."""
    return task.objective.metrics(_tally(task, exchange, models, task.data.test if examples is None else examples))


def evaluate_members(
    task: Task, exchange: Exchange, models: Tensor, examples: Examples | None = None
) -> dict[str, float]:
    """The first metric (accuracy, where there is one) of the least and of the greatest single model of [M, P]."""
    found = [evaluate(task, exchange, model.unsqueeze(0), examples) for model in models]
    name = next(iter(found[0]))
    values = [metrics[name] for metrics in found]
    return {f"{name}_min": min(values), f"{name}_max": max(values)}


def reliability(task: Task, exchange: Exchange, models: Models) -> dict[str, list[float]]:
    """Test examples in each bin of confidence, and the sums of confidence and of right answers; {} in a regression."""
    bins = _tally(task, exchange, models, task.data.test).get("bins")
    return {} if bins is None else dict(zip(("count", "confidence", "right"), bins.tolist(), strict=True))


def _tally(task: Task, exchange: Exchange, models: Models, examples: Examples) -> dict[str, Tensor]:
    chunks = _chunks(task, examples)
    empty = task.objective.tally(*predict(task, models, examples, slice(0, 0)))
    parts: list[Message] = [{name: Sum(value.unsqueeze(0)) for name, value in empty.items()}]
    for chunk in chunks[exchange.rank :: exchange.world_size]:
        tally = task.objective.tally(*predict(task, models, examples, chunk))
        parts.append({name: Sum(value.unsqueeze(0)) for name, value in tally.items()})
    return add_up(exchange, parts, len(chunks), task.device)


def entropies(task: Task, exchange: Exchange, models: Models, examples: Examples) -> Tensor:
    """[N] entropy of the averaged prediction for every example, on every rank."""
    chunks, size = _chunks(task, examples), chunk_size(task, examples)
    reduction = Reduction(slots=len(chunks))
    reduction.fields = [Field("entropy", "gather", (size,), "float64")]  # known even to a rank without a chunk
    for number in range(exchange.rank, len(chunks), exchange.world_size):
        row = torch.full((1, size), torch.nan, dtype=torch.float64)
        found = entropy(predict(task, models, examples, chunks[number])[0])
        row[0, : len(found)] = found
        reduction.add({"entropy": Gather(row)}, torch.tensor([number]))
    scales = exchange.agree(reduction.exponents())
    return reduction.total(exchange, scales, len(chunks), task.device)["entropy"].flatten()[: len(examples)]


def evaluate_clients(
    task: Task, exchange: Exchange, models: Tensor, examples: Examples | None = None
) -> dict[str, float]:
    """The mean over clients of the metrics of each client's own model; `models` [n, P] are of those at home here."""
    examples, names = task.data.test if examples is None else examples, [""]
    parts: list[Message] = []
    chunks = _chunks(task, examples)
    for theta in models:
        own = theta[None].to(task.device)
        tallies = [task.objective.tally(*predict(task, own, examples, c)) for c in chunks]
        metrics = task.objective.metrics({n: sum(t[n] for t in tallies) for n in tallies[0]})  # type: ignore[misc]
        names = list(metrics)
        parts.append({"metrics": Mean(torch.tensor([list(metrics.values())], dtype=torch.float64))})
    if not parts:  # a rank without clients weighs nothing
        empty = task.objective.metrics(task.objective.tally(*predict(task, task.initial[None], examples, slice(0, 1))))
        names = list(empty)
        parts.append({"metrics": Mean(torch.zeros(1, len(names), dtype=torch.float64), weight=0.0)})
    total = add_up(exchange, parts, task.num_clients, torch.device("cpu"))
    return dict(zip(names, total["metrics"].tolist(), strict=True))


def add_up(exchange: Exchange, parts: list[Message], most: int, device: torch.device) -> dict[str, Tensor]:
    """The exact sum over all ranks of additive parts: one or more on each rank, at most `most` that are not zero."""
    reduction = Reduction(slots=0)
    for part in parts:
        reduction.add(part, torch.zeros(0, dtype=torch.long))
    scales = exchange.agree(reduction.exponents())
    return reduction.total(exchange, scales, most, device)


def _chunks(task: Task, examples: Examples) -> list[slice]:
    count, size = len(examples), chunk_size(task, examples)
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


def chunk_size(task: Task, examples: Examples) -> int:
    """Examples at a time; fewer where each has many outputs or large activations, as in language.

    A rule of the model and the data alone: on any number of ranks, kernels see the same shapes.
    """
    return max(1, min(CHUNK, ROOM // _bytes(task, examples.inputs[:1])))


def _bytes(task: Task, one: Tensor) -> int:
    """The most that any layer takes or gives for one example, its outputs counted in double precision."""
    seen = [1]

    def note(_: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        seen.extend(x.numel() * x.element_size() for x in (*inputs, output) if isinstance(x, Tensor))

    handles = [module.register_forward_hook(note) for module in task.module.modules()]
    try:
        with torch.no_grad():
            return max(8 * task.outputs(task.initial, one).numel(), *seen)
    finally:
        for handle in handles:
            handle.remove()


def predict(task: Task, models: Models, examples: Examples, chunk: slice) -> tuple[Tensor, Tensor]:
    with torch.no_grad():
        outputs = (task.outputs(theta, examples.inputs[chunk]) for theta in models)
        probabilities = sum(task.objective.probabilities(output) for output in outputs) / len(models)
    assert isinstance(probabilities, Tensor)
    return probabilities, examples.targets[chunk].to(task.device)
