"""What a local solver is: what a cohort does between two exchanges. Three kinds, each a class to derive from.

A *point* solver lowers loss + energy(site)/num_examples, so that a learning rate means what it means in the papers;
f_k = num_examples x loss is what a site adds to. A *posterior* solver lowers

    E_q[f_k + energy(cavity)] + entropy_weight · E_q[log q]

over Gaussians q of a family. A *sampling* solver is a point solver that also draws from
exp(-(f_k + energy(site))/temperature). What a solver remembers of a client (momentum, counters) is given in and handed
back, never kept in the solver. Its annotated fields are the settings local.*.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core import gaussian
from fedddp.core.contract import Contract
from fedddp.core.gaussian import FAMILIES, Family
from fedddp.core.task import Task


class Nothing(NamedTuple):
    """The memory of a solver that starts afresh in every round."""


class Fit(NamedTuple):
    theta: Tensor  # [C, P]
    memory: Any  # the solver's own, a NamedTuple of tensors [C, ...]
    steps: Tensor  # [C] steps taken


class PosteriorFit(NamedTuple):
    lam: Tensor  # [C, ...] natural parameters, in the layout of the family
    memory: Any
    steps: Tensor  # [C]


class Samples(NamedTuple):
    theta: Tensor  # [C, most, P]
    own: Tensor  # [C] how many of them a client made; the rest are 0


class Solver(Contract, extends=True):
    """What every solver has."""

    kind: ClassVar[str] = "any"  # in words, for errors
    waits: ClassVar[bool] = False  # whether its steps wait for numbers of a device, as a line search must

    def memory(self, task: Task, count: int) -> Any:
        """What `count` clients remember of this solver between rounds: a NamedTuple of tensors [count, ...]."""
        return Nothing()

    def uses_total(self) -> bool:
        """Whether a round's work depends on how many there will be (task.rounds): such a run cannot be made longer."""
        return False

    def gradients(self) -> int:
        """How many gradients of its batch a step takes, where it sees examples by `cohort.grad` alone; else 0."""
        return 0

    def passes(self) -> tuple[int, int]:
        """Epochs and batch size, as far as they tell what a client costs; only placement depends on it."""
        return 1, 32


class PointSolver(Solver, extends=True):
    kind: ClassVar[str] = "point"

    @abstractmethod
    def minimise(
        self,
        cohort: Cohort,
        start: Tensor,
        memory: Any,
        site: Tensor | None = None,
        family: Family = gaussian.diagonal,
        watch: Callable[[int, Tensor], None] | None = None,
    ) -> Fit:
        """theta [C, P] that lowers f_k + energy(site), started from `start` [P] or [C, P].

        `site` holds natural parameters for all clients or a row for each; None is no site. `watch` is shown every
        step's number and the rows [c, P] that it moved.
        """


class SamplingSolver(PointSolver, extends=True):
    kind: ClassVar[str] = "sampling"
    tempers: ClassVar[bool] = False  # False: the spread of its samples does not follow the temperature

    @abstractmethod
    def sample(
        self,
        cohort: Cohort,
        start: Tensor,
        memory: Any,
        site: Tensor | None = None,
        family: Family = gaussian.diagonal,
        temperature: float = 1.0,
    ) -> tuple[Fit, Samples]:
        """Samples from exp(-(f_k + energy(site))/temperature), and where the solver ended."""


class PosteriorSolver(Solver, extends=True):
    kind: ClassVar[str] = "posterior"
    families: ClassVar[tuple[str, ...]] = tuple(FAMILIES)  # of Gaussians that it fits
    any_cavity: ClassVar[bool] = True  # False: only a prior N(0, 1/delta), without duals

    @abstractmethod
    def fit(
        self, cohort: Cohort, cavity: Tensor, entropy_weight: float, start: Tensor, memory: Any, family: Family
    ) -> PosteriorFit:
        """`cavity` [C, ...] is a factor of its own for each client; `start` [...] is where all of them begin."""
