"""Fewer bytes for what clients send: bfloat16, or the largest entries only, of a client's change of the parameters.

    bf16   sent_k <- change_k rounded to bfloat16
    top    sent_k <- the largest `keep` of the entries of change_k + residual_k, by magnitude
           residual_k <- change_k + residual_k - sent_k                 (error feedback: Stich et al. 2018)

A method says by `compresses` which field of its message is a mean over clients of changed copies of `base(server)`, or
of changes, where the base is 0. It is wrapped in one that sends the compressed change and
adds the base again before the server's step. The residual is client memory like any other. Off by default: it changes
results.
"""

from dataclasses import dataclass, field
from math import ceil
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.exchange.masks import available
from fedddp.exchange.messages import Mean, Message, Totals
from fedddp.rounds.around import Around
from fedddp.rounds.method import Method
from fedddp.rounds.secrecy import KINDS as SECURE
from fedddp.rounds.solver import Nothing

KINDS = ("none", "bf16", "top")


@dataclass
class ExchangeSettings:
    compress: str = "none"  # what clients send: none (all), bf16, or top (the largest entries, with error feedback)
    keep: float = 0.01  # share of the entries that top sends, in (0, 1]
    secure: str = "none"  # sums that hide their parts: none, rank (of a rank's clients) or client
    range: dict[str, float] = field(default_factory=dict)  # public grids: a field's largest number, above 0; or of all
    gathered: list[str] = field(default_factory=list)  # names of message fields that may be gathered in spite of secure

    def __post_init__(self) -> None:
        check("exchange.compress", self.compress, self.compress in KINDS, " or ".join(KINDS))
        check("exchange.secure", self.secure, self.secure in SECURE, " or ".join(SECURE))
        for name, bound in self.range.items():
            check(f"exchange.range.{name}", bound, bound > 0, "above 0")
        if self.secure != "none" and (missing := available()):
            raise ValueError(f"exchange.secure={self.secure}: {missing}")
        if self.secure != "none" and not self.range:
            raise ValueError(
                f"exchange.secure={self.secure}: needs public grids; write exchange.range.all=... (the largest number "
                "that a client may send), or one for each field"
            )
        check("exchange.keep", self.keep, 0 < self.keep <= 1, "in (0, 1]")


class Clients(NamedTuple):
    method: Any  # what the method's clients remember
    residual: Tensor | Nothing  # [C, P] what top has not sent yet


class Compressed(Around):
    """A method whose clients send less."""

    _holds: ClassVar[tuple[type, ...]] = (Clients,)
    settings: ExchangeSettings

    def init_clients(self, count: int, task: Task, local: Any) -> Clients:
        own = self.method.init_clients(count, task, local)
        if self.settings.compress == "bf16":
            return Clients(own, Nothing())
        return Clients(own, torch.zeros(count, task.layout.numel, dtype=task.dtype, device=task.device))

    def client_step(self, server: Any, clients: Clients, cohort: Cohort, local: Any) -> tuple[Clients, Message]:
        own, message = self.method.client_step(server, clients.method, cohort, local)
        entry = message[self.method.compresses]
        assert isinstance(entry, Mean)  # as `compresses` promises
        change, residual = entry.value - self.method.base(server), clients.residual
        if isinstance(residual, Tensor):
            wanted = change + residual
            sent = largest(wanted, self._count(change.shape[1]))
            residual = wanted - sent
        else:
            sent = change.bfloat16().to(change.dtype)
        return Clients(own, residual), {**message, self.method.compresses: Mean(sent, entry.weight)}

    def server_step(self, server: Any, total: Totals, task: Task) -> Any:
        name = self.method.compresses
        return self.method.server_step(server, {**total, name: self.method.base(server) + total[name]}, task)

    def bytes_up(self, plain: int, server: Any, total: Totals) -> float:
        """Half of each number; or the largest entries' values, and 32 bits for each place."""
        whole = total[self.method.compresses]
        top = (whole.itemsize + 4) * self._count(whole.numel())
        sent = 2 * whole.numel() if self.settings.compress == "bf16" else top
        return self.method.bytes_up(plain - whole.numel() * whole.itemsize + sent, server, total)

    def _count(self, numel: int) -> int:
        return ceil(self.settings.keep * numel)


def largest(value: Tensor, count: int) -> Tensor:
    """Rows [C, P] with only their `count` largest entries; equal ones all stay, so that no order matters."""
    size = value.abs()
    least = size.topk(count, dim=1, sorted=False).values.amin(1, keepdim=True)
    return torch.where(size >= least, value, 0)


def compressed(method: Method[Any, Any, Any], settings: ExchangeSettings, name: str) -> Method[Any, Any, Any]:
    """The method as it is, or wrapped."""
    if settings.compress == "none":
        return method
    if not method.compresses:
        raise ValueError(
            f"exchange.compress={settings.compress}: not for method={name}, which sends more than a change of the "
            "parameters: duals or natural parameters would be damaged. Use exchange.compress=none"
        )
    return Compressed(method, settings)
