"""Methods: one file each, named after it. A method is two memories and two pure steps.

    Server, Clients                              NamedTuples of tensors: who remembers what
    Method                                       a dataclass of hyper-parameters, with
      init_server(task)              -> Server   started at task.initial [P], the network's initialisation
      init_clients(count, task, local) -> Clients    `count` rows
      client_step(server, clients, cohort, local) -> (Clients, Message)
      server_step(server, total, task) -> Server

and, where a method needs them,

      phase(server, index)           -> Phase | None   a round of several exchanges (default: one)
      models(server)                 -> [M, P]         an ensemble whose predictions are averaged (default: theta)
      metrics(before, after, total)  -> dict           numbers of its own for the records
      broadcast                                        names of the Server fields that clients are sent (default: theta)
      sends                                            what may be sent compressed: see fedddp/compress.py

The engine stores, masks, checkpoints and reshards whatever the memories hold. `server.theta` [P] is what is evaluated.
Sign convention, everywhere: a dual is a likelihood site.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from fedddp.reduce import Message, Totals
from fedddp.task import Task


class Phase(NamedTuple):
    """One exchange of a round: client work, one sum, server work."""

    client_step: Callable[..., tuple[Any, Message]]
    server_step: Callable[[Any, Totals, Task], Any]
    broadcast: tuple[str, ...] = ("theta",)  # fields of the server's memory that clients are sent for it


def phase_of(method: Any, server: Any, index: int) -> Phase | None:
    """The round's phase number `index`; None when the round is over."""
    if hasattr(method, "phase"):
        phase: Phase | None = method.phase(server, index)
        return phase
    if index > 0:
        return None
    return Phase(method.client_step, method.server_step, getattr(method, "broadcast", ("theta",)))
