"""Hessian-weighted aggregation (HWA, Alg. 1, Eq. 2 and 5-7): chosen layers are averaged by each client's curvature.

    client   theta_k <- solver on f_k from theta
             D_k     <- Σ_i (∂loss_i/∂theta)² at theta_k, on the chosen layers
    server   theta   <- Σ_k N_k theta_k / Σ_k N_k                    the other layers
             theta   <- Σ_k D_k theta_k / Σ_k D_k                    the chosen ones, coordinate by coordinate
             theta   <- Σ_k D_k theta_k / (|D_k| + eps)              the chosen ones, rule = printed

Eq. 6 is diag(JᵀJ) of a loss L. With L the vector of the examples' losses that is the sum of squares above, which is
used (curvature = examples); with L the client's scalar loss, as it is printed, the square of the sum (total).
Where no client has curvature the first line holds. Eq. 7 as printed is no average: its coefficients do not add up to
one, and its fallback never comes into play, since |D_k| + eps is never 0.
"""

from dataclasses import field
from typing import NamedTuple

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.clients.curvature import squared_grads
from fedddp.core.check import check
from fedddp.core.params import Layout
from fedddp.core.task import Task
from fedddp.exchange.messages import Mean, Message, Sum, Totals
from fedddp.methods._channel import perturb
from fedddp.rounds import method
from fedddp.rounds.method import Clients
from fedddp.rounds.solver import PointSolver

RULES = ("coordinate", "printed")
CURVATURES = ("examples", "total")
EPS = 1e-8  # of the printed rule
NOTHING = 2.0**-30  # curvature below this share of the largest is none: sums have no more digits to tell by


class Server(NamedTuple):
    theta: Tensor  # [P] the parameters
    chosen: Tensor  # [Q] coordinates that curvature weighs


class Method(method.Method[Server, Clients]):
    layers: list[str] = field(default_factory=list)  # names of modules or parameters to weight; empty: the output layer
    rule: str = "coordinate"  # coordinate: an average in each coordinate; or printed: Eq. 7 as it stands
    curvature: str = "examples"  # D_k: examples (the sum of the examples' squares) or total (the square of their sum)
    noise: float = 0.0  # deviation of Gaussian noise on a client's parameters and curvature, at least 0

    def __post_init__(self) -> None:
        check("method.rule", self.rule, self.rule in RULES, " or ".join(RULES))
        check("method.curvature", self.curvature, self.curvature in CURVATURES, " or ".join(CURVATURES))
        check("method.noise", self.noise, self.noise >= 0, "at least 0")

    def init_server(self, task: Task) -> Server:
        return Server(task.initial, torch.cat(places(task.layout, self.layers)).to(task.device))

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        fit = local.minimise(cohort, server.theta, clients.solver)
        theta = perturb(fit.theta, self.noise, cohort, "update")
        curvature = self._curvature(cohort, fit.theta, server.chosen)
        curvature = perturb(curvature, self.noise, cohort, "curvature").clamp_min(0)
        return Clients(fit.memory), self._message(theta, curvature, cohort, server.chosen)

    def _curvature(self, cohort: Cohort, theta: Tensor, chosen: Tensor) -> Tensor:
        """D_k [C, Q] of the chosen coordinates."""
        if self.curvature == "total":
            return cohort.full_grad(theta)[:, chosen].square()
        return squared_grads(cohort, theta, chosen)

    def _message(self, theta: Tensor, curvature: Tensor, cohort: Cohort, chosen: Tensor) -> Message:
        """What theta [C, P] and curvature [C, Q] of the chosen coordinates add to the sums."""
        weight = curvature
        if self.rule == "printed":
            sizes = [len(place) for place in places(cohort.task.layout, self.layers)]
            layers = curvature.split(sizes, dim=1)
            weight = torch.cat([layer / (layer.norm(dim=1, keepdim=True) + EPS) for layer in layers], dim=1)
        return {
            "theta": Mean(theta, weight=cohort.num_examples),
            "weighted": Sum(weight * theta[:, chosen]),
            "curvature": Sum(weight),
        }

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        theta, weight = total["theta"].clone(), total["curvature"]
        found = total["weighted"]
        if self.rule == "coordinate":
            found = torch.where(weight > NOTHING * weight.amax(), found / weight, theta[server.chosen])
        theta[server.chosen] = found
        return server._replace(theta=theta)

    def bytes_up(self, plain: int, server: Server, total: Totals) -> float:
        """A client sends theta_k, N_k and D_k; that their product is summed too is our way to add up."""
        return (server.theta.numel() + 1 + len(server.chosen)) * server.theta.itemsize


def places(layout: Layout, layers: list[str]) -> list[Tensor]:
    """The coordinates of each layer that is named; of the output layer, the last one, where none is."""
    if not layers:
        layers = [layout.names[-1].rpartition(".")[0]]
    found = []
    for layer in layers:
        inside = [s for name, s in layout.slices().items() if layer in ("", name) or name.startswith(f"{layer}.")]
        modules = sorted({name.rpartition(".")[0] for name in layout.names if "." in name})
        check("method.layers", layer, bool(inside), f"among {', '.join([*modules, *layout.names])}")
        found.append(torch.cat([torch.arange(s.start, s.stop) for s in inside]))
    return found
