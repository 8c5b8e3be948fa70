"""What an evaluation tells of each client: its part of the test set, losses of its local work, models of its own."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedddp.core.rng import key
from fedddp.core.task import Task
from fedddp.evaluation.parts import Parts
from fedddp.evaluation.personal import Personal
from fedddp.evaluation.posterior import Samples
from fedddp.evaluation.predictions import Models, chunk_size, predict
from fedddp.exchange.group import Exchange
from fedddp.exchange.messages import Gather
from fedddp.exchange.reduce import Field, Reduction
from fedddp.records.table import Table
from fedddp.rounds.federate import Federation
from fedddp.rounds.report import Report

CLIENTS = "clients"  # the field of a tally with a row for each client


@dataclass(frozen=True)
class ByClient:
    federation: Federation
    parts: Parts
    personal: Personal | None = None  # what clients make of the server's model, where that is wanted
    alone: Table | None = None  # of another run, to compare with

    def tally(self, probabilities: Tensor, targets: Tensor, chunk: slice) -> Tensor:
        """[K, n] of a chunk of the test set."""
        return tally_by(self.federation.task, probabilities, targets, self.parts.owner[chunk], self.parts.count)

    def table(self, columns: dict[str, Tensor], report: Report | None) -> Table:
        """`columns` of metrics, and beside them those that are no metrics."""
        plain = {"test_examples": self.parts.sizes.double()}
        if report is not None and report.ends is not None and report.clients is not None:
            for name, losses in zip(("loss_before", "loss_after"), report.ends.T, strict=True):
                plain[name] = torch.full((self.parts.count,), torch.nan, dtype=torch.float64)
                plain[name][report.clients] = losses.double()
        return Table(plain | columns, self.parts.digest, self.parts.unseen)

    def own(self, models: Tensor) -> dict[str, Tensor]:
        """Each client's own model on its own part; `models` [n, P] are those of the clients at home here."""
        ids, device = self.federation.store.ids.tolist(), self.federation.task.device
        rows = ((client, [theta[None].to(device)]) for client, theta in zip(ids, models, strict=True))
        return self._metrics(rows, [""])

    def made_personal(self, server: Any, finished: int, samples: int) -> dict[str, Tensor]:
        """What each client makes of the server's model, on its own part; samples of its posterior, where it has one."""
        if self.personal is None:
            return {}
        personal, seed = self.personal, self.federation.task.streams.seed
        drawn = samples if personal.fits(self.federation.method.posterior(server)) else 0

        def models() -> Iterator[tuple[int, list[Models]]]:
            for client, theta, lam in personal.models(self.federation, server, finished):
                own: list[Models] = [theta[None]]
                if lam is not None and drawn:
                    own.append(Samples(lam, drawn, key(seed, "personal", client), finished))
                yield client, own

        return self._metrics(models(), ["personal_", "personal_averaged_"][: 2 if drawn else 1])

    def _metrics(self, models: Iterable[tuple[int, Sequence[Models]]], kinds: list[str]) -> dict[str, Tensor]:
        task = self.federation.task
        found = tally_own(task, self.federation.exchange, models, self.parts, len(kinds))
        read = task.objective.metrics_by
        return {f"{kind}{n}": v for i, kind in enumerate(kinds) for n, v in read(found[:, i]).items()}


def tally_by(task: Task, probabilities: Tensor, targets: Tensor, owner: Tensor, count: int) -> Tensor:
    """[K, n] of each client's examples; those with owner -1 are nobody's."""
    group = torch.where(owner < 0, count, owner).to(targets.device)
    return task.objective.tally_by(probabilities, targets, group, count + 1)[:count]


def tally_own(
    task: Task, exchange: Exchange, models: Iterable[tuple[int, Sequence[Models]]], parts: Parts, kinds: int
) -> Tensor:
    """[K, kinds, n] of clients' own models, each on its own part; `models` are those of clients of this rank."""
    test, reduction = task.data.test, Reduction(slots=parts.count)
    first = predict(task, task.start[None], test, slice(0, 1))  # no model is called with an empty batch
    size = tally_by(task, *first, torch.zeros(1, dtype=torch.long), 1).shape[1]
    reduction.fields = [Field(CLIENTS, "gather", (kinds, size), "float64")]  # known even to a rank without clients
    for client, own in models:
        total = torch.zeros(1, kinds, size, dtype=torch.float64)
        for rows in parts.of_client(client).split(chunk_size(task, test)):
            if not len(rows):
                continue
            examples = test.take(rows.to(test.targets.device))
            for kind, one in enumerate(own):
                found = predict(task, one, examples, slice(None))
                total[:, kind] += tally_by(task, *found, torch.zeros_like(rows), 1).cpu()
        reduction.add({CLIENTS: Gather(total)}, torch.tensor([client]))
    scales = exchange.agree(reduction.exponents())
    return reduction.total(exchange, scales, parts.count, task.device)[CLIENTS].cpu()
