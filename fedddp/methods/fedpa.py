"""Federated posterior averaging ("Posterior averaging (FedPA)", Alg. 1, 3 and 4, Thm 3, App. C).

    client   samples of its posterior -> mean μ_k and covariance Σ_k = w I + (1 - w) S,   w = 1/(1 + (ℓ-1) shrinkage)
             Δ_k = Σ_k⁻¹ (theta - μ_k)
    server   a step of sgd, adam, yogi or adagrad along Σ_k N_k Δ_k / Σ_k N_k

The shrinkage is such that each sample adds a matrix of rank one to I + (ℓ-1) shrinkage S, so Δ_k follows from products
of vectors alone: O(ℓ²P) time, O(ℓP) memory. In the first rounds Δ_k = theta - theta_k, as in federated averaging. With
exact moments of a quadratic loss, Σ_k⁻¹ (theta - μ_k) is its gradient at theta, for any Hessian, and the fixed point is
the pooled optimum (Prop. 2).
"""

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.clients.curvature import examples
from fedddp.core import tree
from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.exchange.messages import Mean, Message, Sum, Totals
from fedddp.methods._layers import outputs
from fedddp.methods._server_optimiser import RULES, Server, descend, start
from fedddp.rounds import method
from fedddp.rounds.method import Clients
from fedddp.rounds.solver import Samples, SamplingSolver, Solver

RULES_OF_SHRINKAGE = ("rblw", "oas")


class Estimate(NamedTuple):
    """What a cohort found."""

    change: Tensor  # [C, P]
    solver: Any
    samples: Samples | None = None


class Method(method.Method[Server, Clients, SamplingSolver]):
    needs: ClassVar[type[Solver]] = SamplingSolver
    shrinkage: float | str = 0.1  # ρ, at least 0: 0 leaves the identity, more trusts samples more; or rblw, or oas
    burn_in_rounds: int = 0  # rounds of federated averaging before the first samples, at least 0
    moments: str = "sampled"  # sampled: from the solver's samples; or exact: of a quadratic loss
    ess: bool = False  # whether to record the effective sample size; takes a pass over the data for each sample
    optimiser: str = "sgd"  # of the server: sgd, adam, yogi or adagrad
    lr: float = 1.0  # learning rate of the server's optimiser, above 0
    momentum: float = 0.0  # of the optimiser sgd, and beta1 of the others, in [0, 1)
    beta2: float = 0.99  # how slowly the mean of squares of adam and yogi forgets, in [0, 1)
    tau: float = 1e-3  # added to the root of the squares by adam, yogi and adagrad, above 0

    def __post_init__(self) -> None:
        fine = self.shrinkage in RULES_OF_SHRINKAGE if isinstance(self.shrinkage, str) else self.shrinkage >= 0
        check("method.shrinkage", self.shrinkage, fine, "at least 0, rblw or oas")
        check("method.burn_in_rounds", self.burn_in_rounds, self.burn_in_rounds >= 0, "at least 0")
        check("method.moments", self.moments, self.moments in ("sampled", "exact"), "sampled or exact")
        check("method.optimiser", self.optimiser, self.optimiser in RULES, " or ".join(RULES))
        check("method.lr", self.lr, self.lr > 0, "above 0")
        check("method.momentum", self.momentum, 0 <= self.momentum < 1, "in [0, 1)")
        check("method.beta2", self.beta2, 0 <= self.beta2 < 1, "in [0, 1)")
        check("method.tau", self.tau, self.tau > 0, "above 0")

    def init_server(self, task: Task) -> Server:
        return Server(task.initial, start(task.initial, self.optimiser, self.tau))

    def mismatch(self, local: Solver) -> str:
        return "" if self.moments == "exact" else super().mismatch(local)

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: SamplingSolver
    ) -> tuple[Clients, Message]:
        """A change that is not finite is left out and counted; such a client starts afresh."""
        found = self._estimate(server.theta, clients, cohort, local)
        good = found.change.isfinite().all(1)
        message: dict[str, Mean | Sum] = {
            "change": Mean(
                torch.where(good.unsqueeze(1), found.change, 0), weight=torch.where(good, cohort.num_examples, 0)
            ),
            "left_out": Sum((~good).to(found.change)),
        }
        if found.samples is not None:
            message["samples"] = Mean(found.samples.own.to(found.change))
            if self.ess:
                message["ess"] = Mean(
                    torch.where(good, effective_size(cohort, found.samples), 0), weight=good.to(found.change)
                )
        return Clients(_keep(good, found.solver)), message

    def _estimate(self, theta: Tensor, clients: Clients, cohort: Cohort, local: SamplingSolver) -> Estimate:
        if self.moments == "exact":
            gradient = cohort.full_grad(theta.expand(len(cohort), -1)) / cohort.num_examples.unsqueeze(1)
            return Estimate(gradient, clients.solver)
        if cohort.round < self.burn_in_rounds:
            fit = local.minimise(cohort, theta, clients.solver)
            return Estimate(theta - fit.theta, fit.memory)
        fit, samples = local.sample(cohort, theta, clients.solver)
        rows = zip(samples.theta, samples.own.tolist(), strict=True)
        change = torch.stack([delta(theta, made[:own], shrinkage_of(made[:own], self.shrinkage)) for made, own in rows])
        return Estimate(change, fit.memory, samples)

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        return descend(server, total["change"], self.optimiser, self.lr, self.momentum, self.beta2, self.tau)

    def metrics(self, before: Server, after: Server, total: Totals) -> dict[str, float]:
        """Clients left out, and in the mean over clients the number of samples and their effective number."""
        return {name: float(total[name]) for name in ("left_out", "samples", "ess") if name in total}


def shrinkage_of(samples: Tensor, rule: float | str) -> float:
    """ρ of samples [ℓ, P]: a number, or so that the identity's weight w is near the best (Chen et al. 2010; App. C).

        rblw    w = [(n - 2)/n tr S² + tr²S] / [(n + 2) (tr S² - tr²S/P)]
        oas     w = [(1 - 2/P) tr S² + tr²S] / [(n + 1 - 2/P) (tr S² - tr²S/P)]

    at most 1, with n = ℓ - 1 and traces by products of samples alone; ρ = (1/w - 1)/(ℓ - 1).
    """
    if not isinstance(rule, str):
        return float(rule)
    n, size = len(samples) - 1, samples.shape[1]
    if n < 1:
        return 0.0
    away = (samples - samples.mean(0)).double()
    gram = away @ away.T / n
    square, trace = float(gram.square().sum()), float(gram.trace()) ** 2
    apart = max(square - trace / size, 0.0)
    if rule == "rblw":
        least, most = (n - 2) / n * square + trace, (n + 2) * apart
    else:
        least, most = (1 - 2 / size) * square + trace, (n + 1 - 2 / size) * apart
    return 0.0 if least >= most else (most / least - 1) / n


def kish(energy: Tensor) -> Tensor:
    """(Σ w)²/Σ w² with w = exp(-energy) over the last axis: how many independent samples these are worth."""
    return (2 * (-energy).logsumexp(-1) - (-2 * energy).logsumexp(-1)).exp()


def delta(theta: Tensor, samples: Tensor, shrinkage: float) -> Tensor:
    """Σ⁻¹(theta - μ) [P] for the mean and the shrunk covariance of samples [ℓ, P] (Eq. 18-28).

    With Σ̃_t = I + (t-1) shrinkage S_t of the first t samples, u_t = x_t - μ_{t-1} and γ_t = shrinkage (t-1)/t,

        Σ̃_t = Σ̃_{t-1} + γ_t u_t u_tᵀ
        v_t = Σ̃_{t-1}⁻¹ u_t = u_t - Σ_{s<t} c_s (v_s·u_t) v_s,    c_t = γ_t/(1 + γ_t u_t·v_t)
    """
    mean, change = samples[0].clone(), theta - samples[0]
    v = torch.empty_like(samples[1:])
    c = samples.new_empty(len(v))
    for i, sample in enumerate(samples[1:]):
        t, u = i + 2, sample - mean
        torch.sub(u, v[:i].T @ (c[:i] * (v[:i] @ u)), out=v[i])
        gamma, uv = shrinkage * (t - 1) / t, u @ v[i]
        c[i] = gamma / (1 + gamma * uv)
        change -= (1 + c[i] * (t * (u @ change) - uv)) / t * v[i]
        mean += u / t
    return change * (1 + len(v) * shrinkage)


def effective_size(cohort: Cohort, samples: Samples) -> Tensor:
    """Kish's (Σ w)²/Σ w² with w = exp(-f_k) at each of a client's samples; [C]."""
    task = cohort.task
    energy = torch.full(samples.theta.shape[:2], torch.inf, dtype=torch.float64)
    for row, own in enumerate(samples.own.tolist()):
        energy[row, :own] = 0
    for row, inputs, targets in examples(cohort, 1024):
        for i in range(int(samples.own[row])):
            losses = task.objective.loss(outputs(task, samples.theta[row, i], inputs), targets)
            energy[row, i] += losses.sum().cpu()
    return kish(energy).to(samples.theta)


def _keep(good: Tensor, memory: Any) -> Any:
    """The solver's memory, blank for the clients that are left out."""
    return tree.map_leaves(lambda leaf: torch.where(good.view(-1, *[1] * (leaf.dim() - 1)), leaf, 0), memory)
