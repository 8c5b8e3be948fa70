"""Fisher merging (Matena & Raffel 2022): every coordinate where the clients' Fisher information wants it.

    client   theta_k <- solver on f_k from theta;    F_k <- diagonal Fisher information of f_k at theta_k
    server   theta   <- Σ_k F_k theta_k / Σ_k F_k    coordinate by coordinate

Where no client knows anything (Σ_k F_k is about 0) the clients' mean stands in. The FedBEns authors' baseline sends F_k
and theta_k in 15 bits and a sign, each layer by its largest entry, which sets small F_k to 0 (bits = 15), and falls
back on the mean by examples (fallback = examples).
"""

from collections.abc import Callable

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.clients.curvature import ggn_diag, squared_grads
from fedddp.core.check import check
from fedddp.core.params import Layout
from fedddp.core.task import Task
from fedddp.exchange.messages import Mean, Message, Sum, Totals
from fedddp.rounds import method
from fedddp.rounds.method import Clients, Server
from fedddp.rounds.solver import PointSolver

FISHERS: dict[str, Callable[[Cohort, Tensor], Tensor]] = {"ggn": ggn_diag, "empirical": squared_grads}


class Method(method.Method[Server, Clients]):
    fisher: str = "ggn"  # ggn: labels drawn from the model; or empirical: labels as they are
    floor: float = 1e-6  # information per example below which a coordinate takes the clients' mean, at least 0
    fallback: str = "plain"  # the mean where there is no information: plain (every client alike) or by examples
    bits: int = 0  # bits of each number sent, from 1 to 23 beside a sign, in steps of a layer's largest; 0: as it is

    def __post_init__(self) -> None:
        check("method.fisher", self.fisher, self.fisher in FISHERS, " or ".join(FISHERS))
        check("method.fallback", self.fallback, self.fallback in ("plain", "examples"), "plain or examples")
        check("method.bits", self.bits, 0 <= self.bits <= 23, "from 1 to 23, or 0 to send what is there")
        check("method.floor", self.floor, self.floor >= 0, "at least 0")

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        fit = local.minimise(cohort, server.theta, clients.solver)
        fisher, theta = FISHERS[self.fisher](cohort, fit.theta), fit.theta
        weight = cohort.num_examples if self.fallback == "examples" else 1.0
        if self.bits:
            fisher, theta = (quantised(rows, cohort.task.layout, self.bits) for rows in (fisher, theta))
        message: Message = {
            "theta": Mean(fit.theta, weight=weight),
            "fisher": Sum(fisher),
            "pull": Sum(fisher * theta),
            "examples": Sum(cohort.num_examples),
        }
        return Clients(fit.memory), message

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        known = total["fisher"] > self.floor * total["examples"]
        ratio = total["pull"] / torch.where(known, total["fisher"], 1)
        return Server(torch.where(known, ratio, total["theta"]))

    def bytes_up(self, plain: int, server: Server, total: Totals) -> float:
        """A client sends theta_k, F_k and N_k; that their product is summed too is our way to add up."""
        numbers = 2 * server.theta.numel()
        return numbers * (self.bits + 1) / 8 + 4 if self.bits else (numbers + 1) * server.theta.itemsize


def quantised(rows: Tensor, layout: Layout, bits: int) -> Tensor:
    """Rows [C, P], each parameter tensor as whole multiples of its largest entry / (2^bits - 1)."""
    levels, found = 2**bits - 1, torch.empty_like(rows)
    for place in layout.slices().values():
        largest = rows[:, place].abs().amax(1, keepdim=True)
        unit = torch.where(largest > 0, largest, 1.0)
        found[:, place] = (rows[:, place] / unit * levels).round() * unit / levels
    return found
