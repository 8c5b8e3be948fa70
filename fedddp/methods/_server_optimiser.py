"""Servers that descend along the mean client change Δ = Σ q_k Δ_k / Σ q_k, Δ_k = theta - theta_k (Reddi et al. 2021).

    sgd       m <- momentum m + Δ                       theta <- theta - lr m
    adaptive  m <- beta1 m + (1 - beta1) Δ              theta <- theta - lr m/(√s + tau)
    adam      s <- beta2 s + (1 - beta2) Δ²
    yogi      s <- s - (1 - beta2) Δ² sign(s - Δ²)
    adagrad   s <- s + Δ²

s starts at tau², and there is no bias correction, as published.
"""

from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.exchange.messages import Mean, Message, Totals
from fedddp.rounds import method
from fedddp.rounds.method import Clients
from fedddp.rounds.solver import PointSolver

SECOND: dict[str, Callable[[Tensor, Tensor, float], Tensor]] = {
    "adam": lambda s, squared, beta2: beta2 * s + (1 - beta2) * squared,
    "yogi": lambda s, squared, beta2: s - (1 - beta2) * squared * torch.sign(s - squared),
    "adagrad": lambda s, squared, beta2: s + squared,
}
RULES = ("sgd", *SECOND)


class Moments(NamedTuple):
    first: Tensor  # [P] momentum of the mean changes
    second: Tensor  # [P], or [0] for sgd, which keeps none


class Server(NamedTuple):
    theta: Tensor  # [P] the parameters
    moments: Moments


def start(theta: Tensor, rule: str, tau: float = 0.0) -> Moments:
    return Moments(torch.zeros_like(theta), torch.full_like(theta, tau**2) if rule in SECOND else theta[:0])


def remember(moments: Moments, gradient: Tensor, rule: str, beta1: float, beta2: float) -> Moments:
    """Moving averages of the gradient and, for the adaptive rules, of its square."""
    first = beta1 * moments.first + (1 - beta1) * gradient
    return Moments(first, SECOND[rule](moments.second, gradient.square(), beta2) if rule in SECOND else moments.second)


def descend(
    server: Any, change: Tensor, rule: str, lr: float, beta1: float, beta2: float = 0.0, tau: float = 0.0
) -> Server:
    """One step of the server; for sgd `beta1` is the momentum."""
    theta, moments = server.theta, server.moments
    if rule == "sgd":
        velocity = beta1 * moments.first + change
        return Server(theta - lr * velocity, Moments(velocity, moments.second))
    moments = remember(moments, change, rule, beta1, beta2)
    return Server(theta - lr * moments.first / (moments.second.sqrt() + tau), moments)


class Descent(method.Method[Server, Clients], extends=True):
    """Federated averaging whose server takes the mean change for a gradient; a rule says how it steps."""

    by_solver: ClassVar[bool] = True
    compresses: ClassVar[str] = "change"
    lr: float = 1.0  # the server's learning rate, above 0

    def __post_init__(self) -> None:
        check("method.lr", self.lr, self.lr > 0, "above 0")

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        fit = local.minimise(cohort, server.theta, clients.solver)
        return Clients(fit.memory), {"change": Mean(server.theta - fit.theta, weight=cohort.num_examples)}


class Adaptive(Descent, extends=True):
    """A step for each coordinate by the size of its past changes."""

    rule: ClassVar[str]
    lr: float = 0.01
    beta1: float = 0.9  # how slowly the mean of the changes forgets, in [0, 1)
    tau: float = 1e-3  # added to the root of the squares, above 0: the larger, the closer to plain momentum

    def __post_init__(self) -> None:
        super().__post_init__()
        check("method.beta1", self.beta1, 0 <= self.beta1 < 1, "in [0, 1)")
        check("method.tau", self.tau, self.tau > 0, "above 0")

    def init_server(self, task: Task) -> Server:
        return Server(task.initial, start(task.initial, self.rule, self.tau))

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        return descend(server, total["change"], self.rule, self.lr, self.beta1, tau=self.tau)


class Forgetting(Adaptive, extends=True):
    """The adaptive rules that forget old changes."""

    beta2: float = 0.99  # how slowly the mean of the changes' squares forgets, in [0, 1)

    def __post_init__(self) -> None:
        super().__post_init__()
        check("method.beta2", self.beta2, 0 <= self.beta2 < 1, "in [0, 1)")

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        return descend(server, total["change"], self.rule, self.lr, self.beta1, self.beta2, self.tau)
