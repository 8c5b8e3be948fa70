"""OTFusion (Singh & Jaggi 2020): neurons aligned by optimal transport, then averaged.

client   theta_k <- solver on f_k from theta
server   layer by layer, given how the layer before was aligned:
         cost_ij <- |neuron i of the largest client - neuron j of client k|²
         client k's neurons take the order of the cheapest transport;    theta <- Σ_k N_k theta_k / Σ_k N_k

With as many neurons on both sides and equal masses an optimal transport plan is a permutation, so the exact plan is
an assignment. Outputs keep their places: classes have names.
"""

from typing import ClassVar

import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.core.task import Task
from fedddp.exchange.messages import Gather, Message, Totals
from fedddp.methods._neurons import Layer, chain, columns, permute
from fedddp.rounds import method
from fedddp.rounds.method import Clients, Server
from fedddp.rounds.solver import PointSolver


class Method(method.Method[Server, Clients]):
    undivided: ClassVar[str] = "whose server moves neurons to where clients' own layers would not find them"

    def init_server(self, task: Task) -> Server:
        chain(task)  # a network that cannot be aligned is refused before anybody trains
        return Server(task.initial)

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        fit = local.minimise(cohort, server.theta, clients.solver)
        message: Message = {"theta": Gather(fit.theta), "examples": Gather(cohort.num_examples)}
        return Clients(fit.memory), message

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        layers, weight = chain(task), total["examples"]
        pivot = total["theta"][weight.argmax()]
        aligned = [permute(task, layers, theta, align(task, layers, theta, pivot)) for theta in total["theta"]]
        return Server(torch.tensordot(weight / weight.sum(), torch.stack(aligned), dims=1))


def align(task: Task, layers: list[Layer], theta: Tensor, pivot: Tensor) -> list[Tensor]:
    """For each layer the order of theta's neurons that comes nearest to the pivot's."""
    mine, theirs = task.layout.views(theta), task.layout.views(pivot)
    orders: list[Tensor] = []
    before = None
    for layer in layers[:-1]:
        vectors = [mine[n].unsqueeze(1) for n in layer.vectors], [theirs[n].unsqueeze(1) for n in layer.vectors]
        rows = torch.cat([columns(mine[layer.weight], before), *vectors[0]], 1)
        wanted = torch.cat([theirs[layer.weight].flatten(1), *vectors[1]], 1)
        before = _assign(wanted.double(), rows.double(), layer.groups).to(theta.device)
        orders.append(before)
    return [*orders, torch.arange(layers[-1].neurons, device=theta.device)]


def _assign(wanted: Tensor, rows: Tensor, groups: int) -> Tensor:
    """order with Σ_i |wanted_i - rows_order(i)|² least, within each group."""
    orders = []
    for group, (one, other) in enumerate(zip(wanted.chunk(groups), rows.chunk(groups), strict=True)):
        cost = torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist").square()
        orders.append(torch.from_numpy(linear_sum_assignment(cost.cpu().numpy())[1]) + group * len(one))
    return torch.cat(orders)
