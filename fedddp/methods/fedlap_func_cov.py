"""FedLap-Func with covariances ("Connecting Federated ADMM to Bayes", Eq. 16 and 25, App. C): FedLap-Cov's step, in
which clients also send predictions on a few inputs M_k, and what these say in weight space is taken out again.

    client   w_k <- argmin f_k(w) + <v_k, w> - ½ wᵀV_k w + ½ |w - w_server|²_S
                    - [F_k(w) - ½ |w - w_k'|²_{H_k}] + [Σ_j F_j^s(w) - ½ |w - w_server|²_{H^s}]
             S_k <- H(f_k)(w_k) - V_k + S
             v_k <- v_k + damping (S_k w_k - S w_server),    V_k <- V_k + damping (S_k - S)
    server   w_server <- argmin ½ delta |w|² + Σ_k [½ wᵀV_k w - <v_k, w> + F_k(w) - ½ |w - w_k|²_{H_k}]
             S <- delta + Σ_k (V_k - H_k) + H^s = delta + Σ_k V_k

F_k(w) = Σ_{i in M_k} τ_i loss(ŷ_i, w) has its minimum at the w_k that the soft labels ŷ_i are of, and H_k is its GGN
there. F_k^s is the same with the server's predictions, and H^s = Σ_k H_k stands for its Hessian: the paper allows both
ways, and this one keeps S positive however little of a client its site holds yet. Each bracket is small around its
point, so that nothing is counted twice: on linear regression with a full covariance, or with nothing in the memory,
this is fedlap_cov, iterate by iterate. correction=false leaves the H terms out and adds the functions to the sites as
they are, as fedlap_func does. The first round has no function terms.

The usual tau is 0.1 (configs/method): with a diagonal H_k the server's objective has the curvature V_k - H_k wherever
the few points of F_k do not bend it. A site grows from 1/K of a client's curvature, and H_k is tau times it, so that
tau much above 1/K leaves directions in which the server runs off.
"""

from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.clients.curvature import ggn_of_points
from fedddp.core import gaussian
from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.exchange.messages import Message, Sum, Totals
from fedddp.local import adam
from fedddp.methods import _descent, _sites
from fedddp.methods._memory import Choice, Recall, everyone, predictions, remember
from fedddp.methods._sites import SiteMethod, check_damping, dual_rate
from fedddp.rounds.solver import PosteriorFit, PosteriorSolver


class Server(NamedTuple):
    lam: Tensor  # the posterior's natural parameters
    sites: Tensor  # lam_0 + the sum of the sites of all clients, active or not
    known_twice: Tensor  # the sum over clients of H_k around w_k, in the layout of lam
    around: Tensor  # H^s around the server's mean
    inputs: Tensor  # [K, M, ...] the clients' memories, as stored; or [1, M, ...] shared by all
    weight: Tensor  # [K, M] τ_i; 0 where a client has no such point, or has not been heard of
    labels: Tensor  # [K, M, ...] each client's last predictions
    known: Tensor  # [K] 1 for clients that have sent their memory; on the host, which decides by it what travels

    @property
    def theta(self) -> Tensor:
        """[P] the mean, which is what a point prediction uses."""
        return gaussian.family_of(self.lam).mean(self.lam)


class Clients(NamedTuple):
    dual: Tensor  # [C, ...] (v_k, V_k)
    around: Tensor  # [C, ...] H_k around w_k
    solver: Any


class Method(SiteMethod[Clients]):
    undivided: ClassVar[str] = "whose server asks the whole model what it says of the memory's inputs"
    damping: float | str = "1/K"  # the site's step: a number in (0, 1], 1/K or N_k/N
    warmup: int = 0  # first rounds in which the damping is N_k/N, whatever it says; at least 0
    correction: bool = True  # whether what functions say in weight space is taken out again (Eq. 16)
    memory: str = "own"  # own: a client's own inputs; or validation: inputs held out at the server, shared by all
    points: int = 1  # inputs of each class in a client's own memory, from 0 to 100,000
    tau: float = 1.0  # weight of a point of memory, per example that it speaks for; at least 0
    steps: int = 500  # steps of the server's Adam, at least 0
    lr: float = 0.001  # learning rate of the server's Adam, above 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_damping(self.damping, self.warmup)
        self._choice()
        check("method.steps", self.steps, self.steps >= 0, "at least 0")
        check("method.lr", self.lr, self.lr > 0, "above 0")
        check("method.temperature", self.temperature, self.temperature == 1, "1: functions and sites are of one loss")

    def init_server(self, task: Task) -> Server:  # type: ignore[override]  # with memories beside
        prior = super().init_server(task).lam
        nothing = torch.zeros_like(prior)
        return Server(prior, prior, nothing, nothing, *self._choice().blank(task))

    def init_clients(self, count: int, task: Task, local: PosteriorSolver) -> Clients:
        prior = self.init_server(task).lam
        nothing = prior.new_zeros(count, *prior.shape)
        return Clients(nothing, nothing.clone(), local.memory(task, count))

    def broadcast(self, server: Server) -> tuple[Tensor, ...]:  # type: ignore[override]
        """Memories travel once, and H^s with every round."""
        once = () if bool(server.known.all()) else (server.inputs,)
        return (server.lam, *([server.around] if self.correction else []), *once)

    def duals(self, clients: Clients) -> Tensor:
        return clients.dual

    def client_step(  # type: ignore[override]
        self, server: Server, clients: Clients, cohort: Cohort, local: PosteriorSolver
    ) -> tuple[Clients, Message]:
        counts, task = self._choice().counts(server), cohort.task
        recalling = cohort.steered(Recall(cohort, server)) if cohort.round and counts else cohort
        twice = server.around - clients.around
        found = local.fit(
            recalling,
            server.lam - clients.dual - twice,
            1.0,
            self.start(server.lam, cohort),
            clients.solver,
            self.family,
        )
        theta = self.family.mean(found.lam)
        precision = self.family.precision(found.lam) + self.family.precision(twice)
        lam, solver = self.proper(PosteriorFit(self.family.natural(theta, precision), found.memory, found.steps))
        step = dual_rate(self.damping, self.warmup, cohort)
        change = step.view(-1, *[1] * (lam.dim() - 1)) * (lam - server.lam)
        around = self._around_own(task, cohort, theta) if counts and self.correction else clients.around
        twice_change = {"around_change": Sum(around - clients.around)} if self.correction else {}
        message = {"dual_change": Sum(change), **twice_change, **self._choice().speak(server, cohort, theta)}
        return Clients(clients.dual + change, around, solver), message

    def admit(self, server: Server, task: Task) -> Server | None:  # type: ignore[override]
        """It has a place for the memory of each client that was there."""
        return None

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:  # type: ignore[override]
        sites = server.sites + total["dual_change"]
        server = server._replace(lam=sites, sites=sites)
        if self.correction:
            server = server._replace(known_twice=server.known_twice + total["around_change"])
        if "labels" in total:
            server = server._replace(**remember(server, total))
        return self._optimise(server, task) if self._choice().counts(server) else server

    def _choice(self) -> Choice:
        return Choice(self.memory, self.points, self.tau)

    def _optimise(self, server: Server, task: Task) -> Server:
        """Adam on Eq. 15 with Eq. 16 for each client, from the sites' mean; the same on every rank."""
        rest, solver, memory = server.sites - server.known_twice, adam.Solver(lr=self.lr), everyone(server, task)

        def slope(theta: Tensor) -> Tensor:
            return memory.pull(theta).add_(self.family.energy_grad(rest, theta))

        start = _descent.begin(server.theta[None], task, solver, validate=False)
        theta = _descent.walk(start, slope, [False] * self.steps, task, solver).theta[0]
        lam = self.family.natural(theta, self.family.precision(server.sites))
        if not self.correction:
            return server._replace(lam=lam)
        hessian = self.family.precision(server.known_twice)
        return server._replace(lam=lam, around=self.family.natural(theta, hessian))

    def _around_own(self, task: Task, cohort: Cohort, theta: Tensor) -> Tensor:
        """H_k around w_k, in the layout of lam; [C, ...]."""
        found = []
        for client, own in zip(cohort.ids, theta, strict=True):
            stored, weight = self._choice().choose(task, client)
            inputs, labels = task.data.prepare(stored, task.dtype), predictions(task, own, stored)
            hessian = ggn_of_points(task, own, inputs, labels, weight, self.family)
            found.append(self.family.natural(own, hessian))
        return torch.stack(found)

    def improper(self, server: Server) -> str:  # type: ignore[override]
        return super().improper(_sites.Server(server.lam, server.sites))
