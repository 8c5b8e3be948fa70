"""What a method is: two memories and two pure steps, in one class to derive from.

    class Server(NamedTuple): ...      what every rank holds alike
    class Clients(NamedTuple): ...     a row per client, kept on the client's home rank

    class MyMethod(Method[Server, Clients]):
        strength: float = 0.1          # an annotated field is a setting: method.strength
        def client_step(self, server, clients, cohort, local): ...
        def server_step(self, server, total, task): ...

The engine stores, masks, checkpoints and reshards whatever the memories hold. `server.theta` [P] is what is evaluated.
Sign convention, everywhere: a dual is a likelihood site. All hooks beside the two steps have a default. Helpers begin
with `_`; any other public name is refused when the class is defined.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, Generic, NamedTuple, Protocol

from torch import Tensor
from typing_extensions import TypeVar

from fedddp.clients.cohort import Cohort
from fedddp.core.contract import Contract
from fedddp.core.objective import Objective
from fedddp.core.task import Task
from fedddp.exchange.messages import Message, Totals
from fedddp.rounds.solver import PointSolver, Solver


class Server(NamedTuple):
    """The usual memory of a server."""

    theta: Tensor  # [P] the parameters


class Clients(NamedTuple):
    """The usual memory of clients."""

    solver: Any  # the local solver's, where it keeps one


class State(Protocol):
    """What a server's memory must have."""

    @property
    def theta(self) -> Tensor:
        """[P] the parameters that are evaluated."""


S = TypeVar("S", bound=State, default=Server)
C = TypeVar("C", bound=tuple[Any, ...], default=Clients)
L = TypeVar("L", bound=Solver, default=PointSolver)


class Phase(NamedTuple):
    """One exchange of a round: client work, one sum, server work."""

    client_step: Callable[..., tuple[Any, Message]]
    server_step: Callable[[Any, Totals, Task], Any]
    broadcast: tuple[Any, ...] = ()  # what of the server's memory each client is sent for it


class Method(Contract, Generic[S, C, L], extends=True):
    needs: ClassVar[type[Solver]] = (
        PointSolver  # the kind of solver: Point-, Posterior-, SamplingSolver, Solver for any
    )
    pools: ClassVar[bool] = False  # True: the split is undone and one client has all data
    by_solver: ClassVar[bool] = False  # True: its clients look at examples through their solver alone
    undivided: ClassVar[str] = ""  # why clients cannot keep layers of the model for themselves, where they cannot
    compresses: ClassVar[str] = ""  # the message's field that may be sent compressed; none where it would be damaged
    clips: ClassVar[str] = ""  # the field that may be clipped and made noisy, if that is another one

    def init_server(self, task: Task) -> S:
        """The server's memory before the first round; task.initial [P] is the network's initialisation."""
        return Server(task.initial)  # type: ignore[return-value]

    def init_clients(self, count: int, task: Task, local: L) -> C:
        """The memory of `count` clients that have not taken part yet."""
        return Clients(local.memory(task, count))  # type: ignore[return-value]

    @abstractmethod
    def client_step(self, server: S, clients: C, cohort: Cohort, local: L) -> tuple[C, Message]:
        """A cohort's work; all its tensors have a leading client axis. A message's entries are Sum, Mean or Gather."""

    @abstractmethod
    def server_step(self, server: S, total: Totals, task: Task) -> S:
        """The server's work, on every rank alike, with the message's totals by name."""

    def phase(self, server: S, index: int) -> Phase | None:
        """The round's exchange number `index`; None when the round is over. By default there is one."""
        return Phase(self.client_step, self.server_step, self.broadcast(server)) if index == 0 else None

    def broadcast(self, server: S) -> tuple[Any, ...]:
        """What of the server's memory each client is sent: tensors or NamedTuples of them, to count bytes."""
        return (server.theta,)

    def models(self, server: S) -> Tensor:
        """[M, P] whose predictions are averaged."""
        return server.theta.unsqueeze(0)

    def posterior(self, server: S) -> Tensor | None:
        """The natural parameters of a Gaussian over parameters, where the method has one."""
        return None

    def own_models(self, server: S, clients: C) -> Tensor | None:
        """[C, P] where a run is judged by each client's own model rather than the server's."""
        return None

    def duals(self, clients: C) -> Tensor | None:
        """[C, ...] the clients' duals, to draw: parameters, or natural parameters where there is a posterior."""
        return None

    def metrics(self, before: S, after: S, total: Totals) -> dict[str, float]:
        """Numbers of its own for the records, after each server step."""
        return {}

    def bytes_up(self, plain: int, server: S, total: Totals) -> float:
        """What one client would send in this exchange, where our way to add it up takes other than `plain` bytes."""
        return plain

    def base(self, server: S) -> Tensor | float:
        """What the field `compresses` or `clips` is a changed copy of; 0 where it is a change already."""
        return 0.0

    def remember(self, clients: C, own: C, change: Tensor) -> C:
        """What clients remember of a step when `change` [C, ...] was added up in place of what they would have sent.

        `clients` is what they remembered before the step, `own` what it left. A client whose part of the server's
        total must be known remembers the change.
        """
        return own

    def noisy(self, server: S, change: Tensor, clients: float) -> Totals:
        """What the server's step is handed, from the noisy sum of the changes of about so many clients."""
        return {self.clips or self.compresses: self.base(server) + change / clients}

    def mend(self, server: S) -> S:
        """The server's memory made proper again where noise has made it improper."""
        return server

    def improper(self, server: S) -> str:
        """What is wrong with the server's memory though it is finite, if anything; the engine names the round."""
        return ""

    def objective(self, plain: Objective) -> Objective:
        """What clients lower in place of the model's loss, of which it is made; evaluation keeps the latter."""
        return plain

    def forget(self, server: S, client: C, task: Task) -> S | None:
        """The server without what a client, of whose memory this is the row, has added; None: that cannot be told.

        `task` is that of the others.
        """
        return None

    def admit(self, server: S, task: Task) -> S | None:
        """The server when clients have come that remember nothing yet; None: it has no place for them."""
        return server

    def uses_total(self) -> bool:
        """Whether a round depends on how many there will be (task.rounds): such a run cannot be made longer."""
        return False

    def mismatch(self, local: Solver) -> str:
        """Why this solver does not fit, if it does not: asked at configuration."""
        if isinstance(local, self.needs):
            return ""
        return f"needs a {self.needs.kind} solver"
