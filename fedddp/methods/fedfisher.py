"""FedFisher (Jhunjhunwala et al. 2024): the server minimises the sum of the clients' quadratics.

    client   theta_k <- solver on f_k from theta;    F_k <- Fisher information of f_k at theta_k
    server   theta   <- argmin Σ_k ½ (theta - theta_k)ᵀ F_k (theta - theta_k),  by Adam from Σ_k N_k theta_k / Σ_k N_k

With a diagonal F_k the server needs two sums for its descent, Σ_k F_k and Σ_k F_k theta_k. Of kfac's factors no sum
tells enough: they are gathered, as in the paper, and every rank descends with all of them. One round is the published
one-shot method; further rounds start from what the last one found.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.clients.kron import Kron, KronSum
from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.exchange.messages import Gather, Mean, Message, Sum, Totals
from fedddp.local import adam
from fedddp.methods._channel import compress_factors, factor_numbers, quantise_layers
from fedddp.methods._descent import Descent, begin, walk
from fedddp.methods._structures import STRUCTURES
from fedddp.rounds import method
from fedddp.rounds.method import Clients
from fedddp.rounds.solver import PointSolver

FISHERS = {"diag": "diag", "kfac": "kron"}
MODE_BITS = 16  # of the parameters themselves, where the Fisher information is quantised


class Server(NamedTuple):
    theta: Tensor  # [P] the parameters
    descent: Descent


class Method(method.Method[Server]):
    fisher: str = "kfac"  # structure of the Fisher information: kfac or diag
    bits: int = 0  # bits of each number of the Fisher information: 8 or 16; 0: as it is
    rank: int = 0  # leading eigenpairs of each Kronecker factor; 0: all of it
    steps: int = 2000  # steps of the server's Adam, at least 1
    lr: float = 0.01  # learning rate of the server's Adam, above 0
    beta2: float = 0.99  # how slowly the mean of squares of the server's Adam forgets, in [0, 1)
    eps: float = 0.01  # of the server's Adam, above 0; large: where clients know little, theta stays near their mean
    validate_every: int = 100  # steps between two looks at the server's validation points, if any; at least 1

    def __post_init__(self) -> None:
        check("method.fisher", self.fisher, self.fisher in FISHERS, " or ".join(FISHERS))
        check("method.bits", self.bits, self.bits in (0, 8, 16), "0, 8 or 16")
        check(
            "method.rank",
            self.rank,
            self.rank == 0 or (self.rank > 0 and self.fisher == "kfac"),
            "0, or above 0 with kfac",
        )
        check("method.steps", self.steps, self.steps >= 1, "at least 1")
        check("method.lr", self.lr, self.lr > 0, "above 0")
        check("method.beta2", self.beta2, 0 <= self.beta2 < 1, "in [0, 1)")
        check("method.eps", self.eps, self.eps > 0, "above 0")
        check("method.validate_every", self.validate_every, self.validate_every >= 1, "at least 1")

    @property
    def _structure(self) -> Any:
        return STRUCTURES[FISHERS[self.fisher]]

    @property
    def _adam(self) -> adam.Solver:
        return adam.Solver(lr=self.lr, beta2=self.beta2, eps=self.eps)

    def init_server(self, task: Task) -> Server:
        self._structure.refuse(task)
        return Server(task.initial, begin(task.initial[None], task, self._adam, validate=False))

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        fit = local.minimise(cohort, server.theta, clients.solver)
        task = cohort.task
        mode = quantise_layers(fit.theta, task.layout, MODE_BITS if self.bits else 0)
        fisher = self._compress(self._structure.measure(cohort, fit.theta), task)
        once = torch.full_like(cohort.num_examples, self._bytes(task))
        message: Message = {
            "mode": Mean(mode, weight=cohort.num_examples),
            "fisher": Sum(fisher) if self.fisher == "diag" else Gather(fisher),
            "pull": Sum(self._structure.product(task, fisher, mode.unsqueeze(1)).squeeze(1)),
            "examples": Sum(cohort.num_examples),
            "bytes": Mean(once),
        }
        return Clients(fit.memory), message

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        start = begin(total["mode"][None], task, self._adam, validate=True)
        looks = [self._looks(step) for step in range(1, self.steps + 1)]
        descent = walk(start, self._slope(total, task), looks, task, self._adam)
        return Server(descent.best[0], descent)

    def _looks(self, step: int) -> bool:
        """Whether the server looks at its validation points after that step."""
        return step % self.validate_every == 0 or step == self.steps

    def _slope(self, total: Totals, task: Task) -> Callable[[Tensor], Tensor]:
        """The gradient of all quadratics, per example, at theta [1, P]."""
        fisher, examples = total["fisher"], total["examples"]
        pull = total["pull"] / examples
        if self.fisher == "diag":
            return partial(torch.addcmul, -pull, fisher / examples)
        return KronSum.of(Kron.unflatten(fisher, task.layout), examples).less(pull)

    def bytes_up(self, plain: int, server: Server, total: Totals) -> float:
        """A client sends its mode and its Fisher information, in so many bits; F_k theta_k follows from them."""
        return float(total["bytes"])

    def _compress(self, fisher: Tensor, task: Task) -> Tensor:
        if self.fisher == "diag":
            return quantise_layers(fisher, task.layout, self.bits)
        if not self.bits and not self.rank:
            return fisher
        return compress_factors(Kron.unflatten(fisher, task.layout), self.bits, self.rank).flatten()

    def _bytes(self, task: Task) -> float:
        numbers = task.layout.numel if self.fisher == "diag" else factor_numbers(task.layout, self.rank)
        whole = 8 * task.dtype.itemsize
        return (task.layout.numel * (MODE_BITS if self.bits else whole) + numbers * (self.bits or whole)) / 8
