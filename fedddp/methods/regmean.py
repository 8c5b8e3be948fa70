"""RegMean (Jin et al. 2023): linear layers merged by least squares on the inputs the clients have seen.

    client   theta_k <- solver on f_k from theta;    G_k <- Σ_i x_i x_iᵀ over the inputs of each linear layer
    server   W       <- (Σ_k G_k)⁻¹ Σ_k G_k W_k      for each linear layer;  plain mean for everything else

W is [in, out] here; a bias is the weight of a constant input. Off-diagonal entries of G_k are scaled by `a`, or by the
one of `choices` that is best on the server's validation points. Where Σ_k G_k says nothing (an input that is never
active) W keeps the plain mean.
"""

from dataclasses import field

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.clients.curvature import examples
from fedddp.core.check import check
from fedddp.core.task import Task
from fedddp.exchange.messages import Gather, Mean, Message, Sum, Totals
from fedddp.methods._descent import scores
from fedddp.methods._layers import layer_inputs, linear_layers
from fedddp.rounds import method
from fedddp.rounds.method import Clients, Server
from fedddp.rounds.solver import PointSolver

CHUNK = 1000  # examples at a time


class Method(method.Method[Server, Clients]):
    a: float = 0.9  # factor of the off-diagonal entries of G, in [0, 1]; 1 is plain least squares
    choices: list[float] = field(default_factory=list)  # factors in [0, 1] to choose from by validation, instead of a

    def __post_init__(self) -> None:
        check("method.a", self.a, 0 <= self.a <= 1, "in [0, 1]")
        check("method.choices", self.choices, all(0 <= a <= 1 for a in self.choices), "numbers in [0, 1]")

    @property
    def _factors(self) -> list[float]:
        return self.choices or [self.a]

    def init_server(self, task: Task) -> Server:
        check("model", type(task.module).__name__, bool(linear_layers(task)), "a network with linear layers")
        held = not self.choices or task.data.validation is not None
        check("method.choices", self.choices, held, "empty without validation points; data.validation=N holds N out")
        return Server(task.initial)

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        fit = local.minimise(cohort, server.theta, clients.solver)
        message: dict[str, Sum | Mean | Gather] = {"theta": Mean(fit.theta)}
        views = cohort.task.layout.views(fit.theta.double())
        for prefix, whole in grams(cohort, fit.theta).items():
            for place, a in enumerate(self._factors):
                gram = whole * a + torch.diag_embed(whole.diagonal(dim1=-2, dim2=-1)) * (1 - a)
                pull = gram @ _weight(views, prefix)
                message |= {f"{prefix}gram{place}": Sum(gram), f"{prefix}pull{place}": Sum(pull)}
        return Clients(fit.memory), message

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        merged = [self._merged(total, task, place) for place in range(len(self._factors))]
        if len(merged) == 1:
            return Server(merged[0])
        return Server(merged[int(scores(task, torch.stack(merged)).argmax())])

    def _merged(self, total: Totals, task: Task, place: int) -> Tensor:
        """The model that one factor gives."""
        merged = total["theta"].clone()
        views = task.layout.views(merged)
        for prefix in linear_layers(task):
            gram, mean = total[f"{prefix}gram{place}"], _weight(views, prefix).double()
            change = torch.linalg.pinv(gram, hermitian=True) @ (total[f"{prefix}pull{place}"] - gram @ mean)
            _set_weight(views, prefix, mean + change)
        return merged

    def bytes_up(self, plain: int, server: Server, total: Totals) -> float:
        """A client sends theta_k and its G_k; that their products are summed too, for each factor, is our way."""
        grams = [value for name, value in total.items() if name.endswith("gram0")]
        return sum(part.numel() * part.itemsize for part in [server.theta, *grams])


def grams(cohort: Cohort, theta: Tensor) -> dict[str, Tensor]:
    """Σ_i x_i x_iᵀ over what each client's linear layers are fed at theta [C, P]; {prefix: [C, d, d]}."""
    total: dict[str, Tensor] = {}
    (whole, theta), merged = cohort.whole(theta), linear_layers(cohort.task)
    for row, inputs, _ in examples(whole, CHUNK):
        fed = layer_inputs(whole.task, theta[row], inputs)
        for prefix in merged:
            x = fed[prefix]
            x = _with_constant(x.double(), f"{prefix}bias" in cohort.task.layout.names)
            if prefix not in total:
                total[prefix] = x.new_zeros(len(cohort), x.shape[1], x.shape[1])
            total[prefix][row] += x.T @ x
    return total


def _with_constant(x: Tensor, bias: bool) -> Tensor:
    return torch.cat([x, x.new_ones(len(x), 1)], 1) if bias else x


def _weight(views: dict[str, Tensor], prefix: str) -> Tensor:
    """[..., in (+ 1), out]: the layer's weight, and its bias as a last row."""
    weight, bias = views[f"{prefix}weight"].mT, views.get(f"{prefix}bias")
    return weight if bias is None else torch.cat([weight, bias.unsqueeze(-2)], -2)


def _set_weight(views: dict[str, Tensor], prefix: str, value: Tensor) -> None:
    weight = views[f"{prefix}weight"]
    weight.copy_(value[: weight.shape[-1]].mT)
    if f"{prefix}bias" in views:
        views[f"{prefix}bias"].copy_(value[-1])
