"""Adapters added up exactly: the mean of clients' products rather than the product of their means (FLoRA).

    client   A from a new draw, B = 0; trains both beside W + merged
    server   merged <- merged + scale Σ_k p_k B_k A_k                      (Wang et al. 2024: B and A stacked, rank K r)
             all else that is trained <- as the method says

A client is sent the adapters of all clients of the round before, so a download is K times an upload. Plain means would
have added scale (Σ p_k B_k)(Σ p_k A_k): the metric adapter_gap is how far that is off, relative to the exact sum.
It is for methods whose clients send their parameters and nothing made of them: fedavg, fedprox and their like.
"""

from functools import partial
from math import sqrt
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core.adapters import merges
from fedddp.core.task import Task
from fedddp.exchange.messages import Gather, Mean, Message, Totals
from fedddp.rounds.around import Around
from fedddp.rounds.method import Phase
from fedddp.rounds.method import Server as Plain

ROWS, WEIGHTS = "adapters", "adapter_weights"


class Server(NamedTuple):
    method: Any  # what the method's server remembers
    buffers: Tensor  # [S]
    round: Tensor  # rounds done
    clients: Tensor  # whose adapters a client is sent
    gap: Tensor  # of the last round

    @property
    def theta(self) -> Tensor:
        theta: Tensor = self.method.theta
        return theta


class Stacked(Around):
    _holds: ClassVar[tuple[type, ...]] = (Server,)
    task: Task

    def __post_init__(self) -> None:
        if self.method.compresses != "theta" or type(self.method.init_server(self.task)) is not Plain:
            raise ValueError(
                "model.lora.train=stack: adds up what clients send of their adapters themselves, which this method "
                "does not only send; choose method=fedavg or fedprox, or model.lora.train=B (means are exact) or both"
            )

    def init_server(self, task: Task) -> Server:
        assert task.state is not None
        counts = torch.zeros(2, dtype=torch.int64, device=task.device)
        own = self.method.init_server(task)
        return Server(own, task.state, counts[0], counts[1], torch.zeros((), device=task.device))

    def phase(self, server: Server, index: int) -> Phase | None:
        inner = self.method.phase(server.method, index)
        if inner is None:
            return None
        stacked = server.theta[:1].expand(int(server.clients) * len(self._index))  # counted, not made
        return Phase(partial(self._work, inner), partial(self._gather, inner), (*inner.broadcast, stacked))

    def _work(self, inner: Phase, server: Server, clients: Any, cohort: Cohort, local: Any) -> tuple[Any, Message]:
        cohort.state = server.buffers.expand(len(cohort), -1).clone()
        memory, message = inner.client_step(server.method, clients, cohort, local)
        theta = message["theta"]
        assert isinstance(theta, Mean)  # as `compresses` promises
        weight = torch.as_tensor(theta.weight, dtype=cohort.task.dtype, device=cohort.task.device)
        rows = {ROWS: Gather(theta.value[:, self._index]), WEIGHTS: Gather(weight.expand(len(cohort)).clone())}
        return memory, {**message, **rows}

    def _gather(self, inner: Phase, server: Server, total: Totals, task: Task) -> Server:
        own = inner.server_step(server.method, total, task)
        share = total[WEIGHTS] / total[WEIGHTS].sum()
        rows = task.initial.new_zeros(len(share), task.layout.numel).index_copy_(1, self._index, total[ROWS])
        views, moved = task.layout.views(rows), server.buffers.clone()
        merged, missed, whole = task.layout.of_buffers(moved), 0.0, 0.0
        for name, layer in merges(task.module).items():
            a, b = views[layer.a], views[layer.b] * share.view(-1, 1, 1)
            exact = layer.scale * torch.einsum("kor,kri->oi", b, a)
            plain = layer.scale * b.sum(0) @ (a * share.view(-1, 1, 1)).sum(0)
            merged[f"{name}.weight"].add_(exact)
            missed, whole = missed + float((exact - plain).square().sum()), whole + float(exact.square().sum())
        gap = server.gap.new_tensor(sqrt(missed / whole) if whole else 0.0)
        own = own._replace(theta=self._anew(own.theta, int(server.round), task))
        return Server(own, moved, server.round + 1, torch.full_like(server.clients, int((share > 0).sum())), gap)

    def _anew(self, theta: Tensor, number: int, task: Task) -> Tensor:
        """With B = 0 and A as a linear layer is drawn, alike on every rank."""
        theta = theta.clone()
        views = task.layout.views(theta)
        generator = torch.Generator().manual_seed(task.streams.key("adapters", number, 0))
        for layer in merges(task.module).values():
            a = views[layer.a]
            drawn = torch.rand(a.shape, generator=generator, dtype=a.dtype) * 2 - 1
            a.copy_(drawn / sqrt(a.shape[1]))
            views[layer.b].zero_()
        return theta

    @property
    def _index(self) -> Tensor:
        """Where the adapters lie among the parameters."""
        places = self.task.layout.slices()
        names = [name for layer in merges(self.task.module).values() for name in (layer.a, layer.b)]
        return torch.cat([torch.arange(places[n].start, places[n].stop) for n in names]).to(self.task.device)

    def bytes_up(self, plain: int, server: Server, total: Totals) -> float:
        """The adapters are sent once, as rows."""
        more = (total[ROWS][0].numel() + 1) * total[ROWS].itemsize
        return super().bytes_up(plain - more, server, total)

    def models(self, server: Server) -> Tensor:
        own = super().models(server)
        return torch.cat([own, server.buffers.expand(len(own), -1)], 1)

    def metrics(self, before: Server, after: Server, total: Totals) -> dict[str, float]:
        return super().metrics(before, after, total) | {"adapter_gap": float(after.gap)}
