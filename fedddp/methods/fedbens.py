"""FedBEns (Talpini et al. 2025): one-shot learning by an ensemble of modes of the product of the clients' mixtures.

    client   M modes w_m of f_k from M initialisations that all clients share, each with its curvature H_m
             q_k(w) = Σ_m 1/M N(w; w_m, Λ_m⁻¹),    Λ_m = H_m/T + I/σ²
    server   M descents, from the coordinate-wise medians of the clients' modes, on
             -Σ_k log q_k(w) + (K - 1) log p(w),    p = N(0, σ²)                          (Eqs. 2-4)
    predict  1/M Σ_m p(y | x, w_m) over the server's M modes

Eq. 2 divides by p^(K-1); Eq. 5 prints the prior with the other sign, which counts it 2K - 1 times (rule = printed).
With priors p_k of the clients' own (client_variances, Eq. 13) the product is p Π_k q_k/p_k; with data that depend on
each other (correlation, Eq. 14) it has one more factor (fedddp/methods/_correlation.py).
Where no client has curvature the first is highest at the *sum* of the clients' modes, which is right for modes of
posteriors but K times too far for modes of likelihoods, as published; the second at half of their mean. The weights r_m
of mixture components need their ½ log |Λ_m|. A client's gradient is Σ_m r_m Λ_m (w - w_m), so Λ_m never leaves it: the
descents are phases in which only sums travel.

Mixtures are kept, and a client trains only once. Rounds after the first form the posterior anew from the clients that
are in the federation then (Remark 3): `join` are not in the first round, `leave` only in the first. After a run with
federation.fits and federation.cohort_width=1, the same run with join=[k] is the federation without k; nobody trains.
"""

from collections.abc import Sequence
from dataclasses import field
from functools import partial
from math import log
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core import gaussian
from fedddp.core.check import check, check_count
from fedddp.core.task import Task
from fedddp.exchange.messages import Gather, Mean, Message, Sum, Totals
from fedddp.local import adam
from fedddp.methods import _correlation as correlation
from fedddp.methods._descent import Descent, advance, begin, lowest
from fedddp.methods._layers import initialisations
from fedddp.methods._mixture import Mixture, known, medians, slope
from fedddp.methods._structures import STRUCTURES, Structure
from fedddp.rounds import method
from fedddp.rounds.method import Phase
from fedddp.rounds.solver import PointSolver

RULES = {"divided": -1, "printed": 1}  # the prior's exponent, in units of K - 1


class Server(NamedTuple):
    theta: Tensor  # [P] the best member on the validation points, or the first
    members: Tensor  # [M, P] the ensemble
    starts: Tensor  # [M, P] initialisations that all clients share
    descent: Descent


class Method(method.Method[Server, Mixture]):
    undivided: ClassVar[str] = "whose clients train several models, and own layers would belong to none of them"
    members: int = 5  # models in the ensemble, and components of each client's mixture, from 1 to 10,000
    mixtures: list[int] = field(default_factory=list)  # components of each client, from 1 to 10,000; empty: members
    structure: str = "kron"  # of the curvature: kron, last (diagonal, and the last layer in full) or diag
    temperature: float = 0.1  # T: curvatures are divided by it, above 0; below 1 the likelihood counts more
    prior_variance: float = 0.1  # σ²: the prior's variance, above 0
    client_variances: list[float] = field(default_factory=list)  # of each client's own prior; empty: prior_variance
    correlation: float = 0.0  # ρ of Eq. 14, from -1 to 1/(K - 1); other than 0 with members=1 and structure=diag only
    rule: str = "divided"  # how the prior counts: divided (by p^(K-1)) or printed (times p^(K-1))
    prior_at_clients: bool = False  # whether clients train on the posterior rather than the likelihood
    steps: int = 300  # steps of the server's Adam, at least 1
    lr: float = 0.001  # learning rate of the server's Adam, above 0
    clip: float = 0.0  # largest norm of the gradient of a descent, as published 1 with kron; 0: no limit
    median: str = "middle"  # of an even number of modes: middle (the mean of the two), or lower, as published
    keep: str = "validation"  # of a descent: validation (the best on such points, or its end) or lowest (objective)
    validate_every: int = 30  # steps between two looks at the server's validation points, if any; at least 1
    join: list[int] = field(default_factory=list)  # numbers (from 0) of the clients that come after the first round
    leave: list[int] = field(default_factory=list)  # numbers (from 0) of the clients that go after the first round

    def __post_init__(self) -> None:
        check_count("method.members", self.members, most=10_000)
        fine = all(1 <= m <= 10_000 for m in self.mixtures)
        check("method.mixtures", self.mixtures, fine, "numbers from 1 to 10,000, one per client")
        for name in ("join", "leave"):
            check(f"method.{name}", getattr(self, name), min(getattr(self, name), default=0) >= 0, "numbers of clients")
        fine = all(variance > 0 for variance in self.client_variances)
        check("method.client_variances", self.client_variances, fine, "numbers above 0, one per client")
        check("method.structure", self.structure, self.structure in STRUCTURES, " or ".join(STRUCTURES))
        check("method.rule", self.rule, self.rule in RULES, " or ".join(RULES))
        check("method.temperature", self.temperature, self.temperature > 0, "above 0")
        check("method.prior_variance", self.prior_variance, self.prior_variance > 0, "above 0")
        most = max(self.mixtures, default=self.members)
        check("method.members", self.members, self.members <= most, f"at most {most}, the largest of method.mixtures")
        simple = self.correlation == 0 or (most, self.structure) == (1, "diag")
        check("method.correlation", self.correlation, simple, "0 unless method.members=1 and method.structure=diag")
        check("method.steps", self.steps, self.steps >= 1, "at least 1")
        check("method.lr", self.lr, self.lr > 0, "above 0")
        check("method.clip", self.clip, self.clip >= 0, "above 0, or 0 for none")
        check("method.median", self.median, self.median in ("middle", "lower"), "middle or lower")
        check("method.keep", self.keep, self.keep in ("validation", "lowest"), "validation or lowest")
        check("method.validate_every", self.validate_every, self.validate_every >= 1, "at least 1")

    @property
    def _structure(self) -> Structure:
        return STRUCTURES[self.structure]

    @property
    def _delta(self) -> float:
        """The prior beside H: Λ = (H + delta)/T."""
        return self.temperature / self.prior_variance

    def _deltas(self, ids: Sequence[int], like: Tensor) -> Tensor:
        """The same of each client's own prior; [C]."""
        own = [self.temperature / self.client_variances[i] for i in ids]
        return torch.tensor(own, dtype=torch.float64, device=like.device).to(like)

    @property
    def _adam(self) -> adam.Solver:
        return adam.Solver(lr=self.lr)

    def models(self, server: Server) -> Tensor:
        """[M, P] whose predictions are averaged."""
        return server.members

    def init_server(self, task: Task) -> Server:
        self._structure.refuse(task)
        count = task.num_clients
        check("method.mixtures", self.mixtures, len(self.mixtures) in (0, count), f"one for each of {count} clients")
        variances = self.client_variances
        check("method.client_variances", variances, len(variances) in (0, count), f"one for each of {count} clients")
        bounded = -1 <= self.correlation <= 1 / max(1, count - 1)
        check("method.correlation", self.correlation, bounded, f"from -1 to 1/{max(1, count - 1)}, of {count} clients")
        for name, ids in (("join", self.join), ("leave", self.leave)):
            check(f"method.{name}", ids, all(0 <= i < count for i in ids), f"numbers of clients, 0 to {count - 1}")
        starts = initialisations(task, self.members)
        return Server(starts[0], starts, starts, begin(starts, task, self._adam, validate=False))

    def init_clients(self, count: int, task: Task, local: PointSolver) -> Mixture:
        rows, zeros = (count, max(self.mixtures, default=self.members)), task.initial.new_zeros
        modes, curvature = zeros(*rows, task.layout.numel), zeros(*rows, self._structure.size(task))
        return Mixture(modes, curvature, zeros(rows, dtype=torch.float64), zeros(rows, dtype=torch.float64))

    def forget(self, server: Server, client: Mixture, task: Task) -> Server:
        """The next round forms the posterior of the clients that are there, and nobody trains."""
        return server

    def phase(self, server: Server, index: int) -> Phase | None:
        if index == 0:
            return Phase(self.client_step, self.server_step, (server.starts,))
        if index > self.steps:
            return None
        return Phase(self._slope, partial(self._descend, step=index))

    def client_step(
        self, server: Server, clients: Mixture, cohort: Cohort, local: PointSolver
    ) -> tuple[Mixture, Message]:
        """Those that are new train; all that are here show their modes."""
        here, counts = self._here(cohort), self._counts(cohort)
        mixture, trained = Mixture(*(leaf.clone() for leaf in clients)), known(clients).tolist()
        new = [row for row in range(len(cohort)) if here[row] and not trained[row]]
        for number in range(clients.weight.shape[1]):
            rows = torch.tensor([row for row in new if counts[row] > number], dtype=torch.int64)
            if len(rows):
                self._train(server.starts[number % self.members], mixture, cohort, local, rows, number)
                share = torch.tensor([1 / counts[row] for row in rows.tolist()], dtype=torch.float64)
                mixture.weight[rows, number] = share.to(mixture.weight.device)
        sent = [_bytes(mixture) * counts[row] if row in new else 0 for row in range(len(cohort))]
        shown = self._present(mixture, cohort)
        message: Message = {
            "modes": Gather(shown.modes * known(shown).view(-1, 1, 1)),
            "weight": Gather(shown.weight),
            "bytes": Mean(torch.tensor(sent, dtype=cohort.task.dtype, device=cohort.task.device)),
        }
        return mixture, message

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        """Begin at the medians; a client that is not here has no weight."""
        start = medians(total["modes"], total["weight"], self.members, self.median == "lower")
        return server._replace(descent=begin(start, task, self._adam, validate=self.keep == "validation"))

    def _slope(self, server: Server, clients: Mixture, cohort: Cohort, local: PointSolver) -> tuple[Mixture, Message]:
        """What each client here adds to the gradient of the server's objective at every member."""
        mixture = self._present(clients, cohort)
        theta, own = server.descent.theta, None
        times = partial(self._structure.product, cohort.task, delta=0.0 if self.client_variances else self._delta)
        if self.client_variances:
            own = self._deltas(cohort.ids, theta)
        slopes, values = slope(mixture, theta, times, self.temperature, own)
        counted = known(mixture).to(slopes.dtype)  # a client that failed to train has no posterior
        priors = {} if own is None else {"priors": Sum(counted * own / self.temperature)}
        more = correlation.sums(mixture, theta, self.temperature) if self.correlation else {}
        return clients, {"slope": Sum(slopes), "value": Sum(values), "clients": Sum(counted), **priors, **more}

    def _descend(self, server: Server, total: Totals, task: Task, step: int) -> Server:
        look = step % self.validate_every == 0 or step == self.steps
        gradient = torch.addcmul(total["slope"], self._prior_precision(total), server.descent.theta)
        if self.correlation:
            gradient += correlation.slope(total, self.correlation)
        if self.clip:
            gradient *= (self.clip / (gradient.norm(dim=1, keepdim=True) + 1e-6)).clamp_max(1)
        descent = advance(server.descent, gradient, task, self._adam, validate=look and self.keep == "validation")
        if self.keep == "lowest":
            descent = lowest(server.descent, descent, self._objective(server.descent.theta, total))
        if step < self.steps:
            return server._replace(descent=descent)
        chosen = descent.best.index_select(0, descent.score.argmax(0, keepdim=True))[0]
        return Server(chosen, descent.best, server.starts, descent)

    def _prior_precision(self, total: Totals) -> Tensor:
        """Of the priors' part in the server's objective, beside their part in every client's posterior."""
        if "priors" in total:  # Eq. 13
            return RULES[self.rule] * (total["priors"] - 1 / self.prior_variance)
        return (total["clients"] - 1) * (RULES[self.rule] / self.prior_variance)

    def metrics(self, before: Server, after: Server, total: Totals) -> dict[str, float]:
        """The server's objective, in the mean over its members, at the last step: it alone makes new members."""
        if "value" not in total or after.members is before.members:
            return {}
        return {"objective": float(self._objective(before.descent.theta, total).mean())}

    def _objective(self, theta: Tensor, total: Totals) -> Tensor:
        """What a descent minimises, at theta [M, P]; [M]."""
        prior = 0.5 * self._prior_precision(total) * theta.square().sum(1)
        pairs = correlation.value(total, self.correlation) if self.correlation else 0.0
        return total["value"] + prior + pairs

    def bytes_up(self, plain: int, server: Server, total: Totals) -> float:
        """A client sends its mixture when it has trained: phases are our way to descend."""
        return float(total["bytes"]) if "bytes" in total else 0.0

    def _train(
        self, start: Tensor, mixture: Mixture, cohort: Cohort, local: PointSolver, rows: Tensor, number: int
    ) -> None:
        """Component `number` of the mixtures of some rows, in place."""
        part, task = cohort.part(rows, number), cohort.task
        ids = [cohort.ids[row] for row in rows.tolist()]
        own = self._deltas(ids, start) if self.client_variances else None
        nothing, delta = torch.zeros_like(start), self._delta if own is None else own.unsqueeze(1)
        nothing = nothing if own is None else nothing.expand(len(rows), -1)
        prior = gaussian.diagonal.natural(nothing, delta) if self.prior_at_clients else None
        fit = local.minimise(part, start, local.memory(task, len(rows)), prior)
        curvature = self._structure.measure(part, fit.theta)
        mixture.modes[rows, number] = fit.theta
        mixture.curvature[rows, number] = curvature
        mixture.logdet[rows, number] = self._logdet(task, curvature, own) - task.layout.numel * log(self.temperature)

    def _logdet(self, task: Task, curvature: Tensor, own: Tensor | None) -> Tensor:
        if own is None:
            return self._structure.logdet(task, curvature, self._delta)
        each = zip(curvature.split(1), own.tolist(), strict=True)
        return torch.cat([self._structure.logdet(task, row, delta) for row, delta in each])

    def _counts(self, cohort: Cohort) -> list[int]:
        """Components of each client's mixture."""
        return [self.mixtures[client] if self.mixtures else self.members for client in cohort.ids]

    def _here(self, cohort: Cohort) -> list[bool]:
        """Whether a client is in the federation this round."""
        away = self.leave if cohort.round else self.join
        return [client not in away for client in cohort.ids]

    def _present(self, mixture: Mixture, cohort: Cohort) -> Mixture:
        """The same mixtures, without weight for a client that is not here."""
        here = self._here(cohort)
        if all(here):
            return mixture
        return mixture._replace(weight=mixture.weight * torch.tensor(here, device=mixture.weight.device).unsqueeze(1))


def _bytes(mixture: Mixture) -> int:
    """Of one component: its mode and its curvature."""
    return sum(leaf.shape[2] * leaf.itemsize for leaf in (mixture.modes, mixture.curvature))
