"""Metrics on the test set, spread over ranks in fixed chunks and added exactly, because they may steer a run."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedddp.core.data import Examples
from fedddp.core.objective import CrossEntropy, NextToken
from fedddp.core.task import Task
from fedddp.evaluation.by_client import CLIENTS, ByClient
from fedddp.evaluation.posterior import Samples, auroc, entropy
from fedddp.evaluation.predictions import Models, chunk_size, in_chunks, predict
from fedddp.exchange.group import Exchange
from fedddp.exchange.messages import Gather, Mean, Message, Sum
from fedddp.exchange.reduce import Field, Reduction
from fedddp.records.table import Table
from fedddp.rounds.federate import Federation
from fedddp.rounds.report import Report


class Evaluated(NamedTuple):
    metrics: dict[str, float]
    clients: Table | None  # a row for each client, where that is wanted


@dataclass
class Evaluator:
    """What a run reports of its server after a round.

    A method with a posterior is judged at the mean and, as averaged_*, by averaging `samples`
    samples. With `ood` inputs, ood_auroc tells how well predictive entropy tells them from the test set, and
    ood_entropy its mean there. With `by_client` the same is told of each client's own part of the test set.
    """

    federation: Federation
    samples: int
    ood: Examples | None = None
    by_client: ByClient | None = None

    def judged_by_own(self, server: Any) -> bool:
        """Whether a run is judged by each client's own model."""
        return self.federation.own_models(server) is not None

    def __call__(self, server: Any, finished: int, report: Report | None = None) -> Evaluated:
        """`report`: of the round, which tells losses before and after local work."""
        found, columns = self._metrics(server, finished, self.federation.task.data.test, self.by_client)
        if (held := self.federation.task.data.validation) is not None:
            chosen, _ = self._metrics(server, finished, held)
            found |= {f"validation_{name}": value for name, value in chosen.items()}
        if self.ood is not None and not self.judged_by_own(server):
            for prefix, models in self.kinds(server, finished).items():
                inside, outside = (self._entropies(models, e) for e in (self.federation.task.data.test, self.ood))
                found[f"{prefix}ood_auroc"] = auroc(inside, outside)
                found[f"{prefix}ood_entropy"] = float(outside.mean())
        if self.by_client is None:
            return Evaluated(found, None)
        if not self.judged_by_own(server):
            columns |= self.by_client.made_personal(server, finished, self.samples)
        table = self.by_client.table(columns, report)
        return Evaluated(found | table.numbers(self.by_client.alone), table)

    def point(self, server: Any) -> Tensor:
        """[M, P] a method's ensemble, or the one model that it has."""
        return self.federation.method.models(server)

    def kinds(self, server: Any, finished: int) -> dict[str, Models]:
        """What to predict with, by the prefix of its metrics: the method's point or ensemble, and its posterior."""
        kinds: dict[str, Models] = {"": self.point(server)}
        lam = self.federation.method.posterior(server)
        if lam is not None and self.samples:
            task = self.federation.task
            buffers = kinds[""][0, task.layout.numel :]  # type: ignore[index]  # the point's
            kinds["averaged_"] = Samples(lam, self.samples, task.streams.seed, finished, buffers)
        return kinds

    def pictures(self, server: Any, finished: int) -> tuple[dict[str, dict[str, list[float]]], dict[str, Tensor]]:
        """How sure the model is: numbers for reliability diagrams, and the entropy of every test prediction."""
        task, exchange = self.federation.task, self.federation.exchange
        if self.judged_by_own(server) or not isinstance(task.objective, CrossEntropy):
            return {}, {}
        kinds = self.kinds(server, finished)
        bins = {f"{prefix}reliability": reliability(task, exchange, models) for prefix, models in kinds.items()}
        if isinstance(task.objective, NextToken):  # a row for each token: too many for a histogram
            return bins, {}
        sets = {"entropy": task.data.test} | ({"ood_entropy": self.ood} if self.ood is not None else {})
        spread = {f"{p}{name}": self._entropies(m, e) for p, m in kinds.items() for name, e in sets.items()}
        return bins, spread

    def _metrics(
        self, server: Any, finished: int, examples: Examples, by_client: ByClient | None = None
    ) -> tuple[dict[str, float], dict[str, Tensor]]:
        """On all examples; and, from the same predictions, on each client's part of them."""
        task, exchange = self.federation.task, self.federation.exchange
        own = self.federation.own_models(server)
        if own is not None:
            columns = {} if by_client is None else by_client.own(own)
            if by_client is not None:  # the server's model beside them
                sums = _tally(task, exchange, self.point(server), examples, by_client)[CLIENTS].cpu()
                columns |= {f"server_{n}": v for n, v in task.objective.metrics_by(sums).items()}
            return evaluate_clients(task, exchange, own, examples), columns
        found: dict[str, float] = {}
        columns = {}
        for prefix, models in self.kinds(server, finished).items():
            tally = _tally(task, exchange, models, examples, by_client)
            found |= {f"{prefix}{n}": v for n, v in task.objective.metrics(tally).items()}
            if by_client is not None:
                columns |= {f"{prefix}{n}": v for n, v in task.objective.metrics_by(tally[CLIENTS].cpu()).items()}
            if isinstance(models, Tensor) and len(models) > 1:
                found |= evaluate_members(task, exchange, models, examples)
        return found, columns

    def _entropies(self, models: Models, examples: Examples) -> Tensor:
        return entropies(self.federation.task, self.federation.exchange, models, examples)


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


def _tally(
    task: Task, exchange: Exchange, models: Models, examples: Examples, by_client: ByClient | None = None
) -> dict[str, Tensor]:
    chunks = in_chunks(task, examples)
    found: list[Message] = []
    for chunk in chunks[exchange.rank :: exchange.world_size]:
        predicted = predict(task, models, examples, chunk)
        tally = task.objective.tally(*predicted)
        if by_client is not None:
            tally[CLIENTS] = by_client.tally(*predicted, chunk)
        found.append({name: Sum(value.unsqueeze(0)) for name, value in tally.items()})
    if not found:  # a rank without a chunk learns the shapes from one example; no model is called with none
        predicted = predict(task, task.start[None], examples, slice(0, 1))
        tally = task.objective.tally(*predicted)
        if by_client is not None:
            tally[CLIENTS] = by_client.tally(*predicted, slice(0, 1))
        found.append({name: Sum(torch.zeros_like(value).unsqueeze(0)) for name, value in tally.items()})
    return add_up(exchange, found, len(chunks), task.device)


def entropies(task: Task, exchange: Exchange, models: Models, examples: Examples) -> Tensor:
    """[N] entropy of the averaged prediction for every example, on every rank."""
    chunks, size = in_chunks(task, examples), chunk_size(task, examples)
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
    chunks = in_chunks(task, examples)
    for theta in models:
        own = theta[None].to(task.device)
        tallies = [task.objective.tally(*predict(task, own, examples, c)) for c in chunks]
        metrics = task.objective.metrics({n: sum(t[n] for t in tallies) for n in tallies[0]})  # type: ignore[misc]
        names = list(metrics)
        parts.append({"metrics": Mean(torch.tensor([list(metrics.values())], dtype=torch.float64))})
    if not parts:  # a rank without clients weighs nothing
        empty = task.objective.metrics(task.objective.tally(*predict(task, task.start[None], examples, slice(0, 1))))
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
