"""Fewer bytes for what clients send: bfloat16, or the largest entries only, of a client's change of the parameters.

    bf16   sent_k <- change_k rounded to bfloat16
    top    sent_k <- the largest `keep` of the entries of change_k + residual_k, by magnitude
           residual_k <- change_k + residual_k - sent_k                 (error feedback: Stich et al. 2018)

A method says by `sends` = (field, base) that its message's field is a mean over clients, and of which of the server's
fields it is a changed copy ("" if it is a change already). It is wrapped in one that sends the compressed change and
adds the base again before the server's step. The residual is client memory like any other. Off by default: it changes
results.
"""

from dataclasses import dataclass
from math import ceil
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedddp.cohort import Cohort
from fedddp.local import Nothing, check
from fedddp.reduce import Mean, Message, Totals
from fedddp.task import Task

KINDS = ("none", "bf16", "top")


@dataclass
class Settings:
    compress: str = "none"  # what clients send: none, bf16, or top (the largest entries, with error feedback)
    keep: float = 0.01  # share of the entries that top sends

    def __post_init__(self) -> None:
        check("exchange.compress", self.compress, self.compress in KINDS, " or ".join(KINDS))
        check("exchange.keep", self.keep, 0 < self.keep <= 1, "in (0, 1]")


class Clients(NamedTuple):
    method: Any  # what the method's clients remember
    residual: Tensor | Nothing  # [C, P] what top has not sent yet


@dataclass
class Compressed:
    """A method whose clients send less; all else is the method's own."""

    method: Any
    settings: Settings

    def __getattr__(self, name: str) -> Any:
        return getattr(self.method, name)

    def init_clients(self, count: int, task: Task, local: Any) -> Clients:
        own = self.method.init_clients(count, task, local)
        if self.settings.compress == "bf16":
            return Clients(own, Nothing())
        return Clients(own, torch.zeros(count, task.layout.numel, dtype=task.dtype, device=task.device))

    def client_step(self, server: Any, clients: Clients, cohort: Cohort, local: Any) -> tuple[Clients, Message]:
        own, message = self.method.client_step(server, clients.method, cohort, local)
        name, _ = self.method.sends
        entry = message[name]
        change = entry.value - self._base(server)
        if self.settings.compress == "bf16":
            sent, residual = change.bfloat16().to(change.dtype), clients.residual
            size = 2 * change.shape[1]
        else:
            wanted = change + clients.residual
            count = ceil(self.settings.keep * change.shape[1])
            sent = largest(wanted, count)
            residual, size = wanted - sent, (change.itemsize + 4) * count  # values, and 32 bits for each place
        return Clients(own, residual), {**message, name: Mean(sent, entry.weight, bytes=size + change.itemsize)}

    def server_step(self, server: Any, total: Totals, task: Task) -> Any:
        name, _ = self.method.sends
        return self.method.server_step(server, {**total, name: self._base(server) + total[name]}, task)

    def _base(self, server: Any) -> Tensor | float:
        _, base = self.method.sends
        return getattr(server, base) if base else 0.0


def largest(value: Tensor, count: int) -> Tensor:
    """Rows [C, P] with only their `count` largest entries; equal ones all stay, so that no order matters."""
    size = value.abs()
    least = size.topk(count, dim=1, sorted=False).values.amin(1, keepdim=True)
    return torch.where(size >= least, value, 0)


def compressed(method: Any, settings: Settings, name: str) -> Any:
    """The method as it is, or wrapped."""
    if settings.compress == "none":
        return method
    if not hasattr(method, "sends"):
        raise ValueError(
            f"exchange.compress={settings.compress}: not for method={name}, which sends more than a change of the "
            "parameters: duals or natural parameters would be damaged. Use exchange.compress=none"
        )
    return Compressed(method, settings)
