"""How much of a client's curvature H is kept, each as one flat row per client so that a method can remember it.

    diag   its diagonal
    last   its diagonal, and the whole block of the last linear layer
    kron   a Kronecker product for each layer (K-FAC)

H is the generalised Gauss-Newton matrix of f_k, the Fisher information where the loss is a log likelihood.
"""

from typing import Protocol

import torch
from torch import Tensor

from fedddp.clients.cohort import Cohort
from fedddp.clients.curvature import examples, ggn_diag, linear_ggn, output_hessian
from fedddp.clients.kron import Kron, kron, refuse_other_layers
from fedddp.core.task import Task
from fedddp.methods._layers import layer_inputs, linear_layers, outputs

CHUNK = 500  # examples at a time


class Structure(Protocol):
    def refuse(self, task: Task) -> None:
        """An error for a model that has no such curvature."""

    def size(self, task: Task) -> int:
        """How many numbers a row takes."""

    def measure(self, cohort: Cohort, theta: Tensor) -> Tensor:
        """H of each client at theta [C, P]; [C, F]."""

    def product(self, task: Task, rows: Tensor, vector: Tensor, delta: float = 0.0) -> Tensor:
        """(H + delta) @ vector for rows [C, F] and vectors [C, M, P], several for each row; [C, M, P]."""

    def logdet(self, task: Task, rows: Tensor, delta: float) -> Tensor:
        """log |H + delta|; [C]."""


class Diagonal:
    def refuse(self, task: Task) -> None:
        """Every model has a diagonal."""

    def size(self, task: Task) -> int:
        return task.layout.numel

    def measure(self, cohort: Cohort, theta: Tensor) -> Tensor:
        return ggn_diag(cohort, theta)

    def product(self, task: Task, rows: Tensor, vector: Tensor, delta: float = 0.0) -> Tensor:
        return vector * (rows + delta if delta else rows).unsqueeze(1)

    def logdet(self, task: Task, rows: Tensor, delta: float) -> Tensor:
        return (rows.double() + delta).log().sum(1)


class LastLayer:
    """The diagonal of all parameters, then the block of the last layer's; its part of the diagonal is not used."""

    def refuse(self, task: Task) -> None:
        if not linear_layers(task):
            raise ValueError("last-layer curvature: the model has no linear layer; use the diagonal")

    def size(self, task: Task) -> int:
        return task.layout.numel + _size(_last(task)) ** 2

    def measure(self, cohort: Cohort, theta: Tensor) -> Tensor:
        return torch.cat([ggn_diag(cohort, theta), last_layer_ggn(cohort, theta).flatten(1)], 1)

    def product(self, task: Task, rows: Tensor, vector: Tensor, delta: float = 0.0) -> Tensor:
        diagonal, block = self._split(task, rows)
        made, last = vector * diagonal.unsqueeze(1), _last(task)
        made[:, :, last] = torch.bmm(vector[:, :, last], block.mT)
        return made.add_(vector, alpha=delta) if delta else made

    def logdet(self, task: Task, rows: Tensor, delta: float) -> Tensor:
        diagonal, block = self._split(task, rows.double())
        others = torch.cat([diagonal[:, : _last(task).start], diagonal[:, _last(task).stop :]], 1)
        spectrum = torch.linalg.eigvalsh(block).clamp_min(0)  # rounding may leave some just below 0
        return (others + delta).log().sum(1) + (spectrum + delta).log().sum(1)

    def _split(self, task: Task, rows: Tensor) -> tuple[Tensor, Tensor]:
        size = _size(_last(task))
        diagonal, block = rows.split([task.layout.numel, size**2], dim=1)
        return diagonal, block.view(len(rows), size, size)


class Kronecker:
    def refuse(self, task: Task) -> None:
        refuse_other_layers(task)

    def size(self, task: Task) -> int:
        return sum(
            shape[0] ** 2 + (n // shape[0]) ** 2 for shape, n in zip(task.layout.shapes, task.layout.sizes, strict=True)
        )

    def measure(self, cohort: Cohort, theta: Tensor) -> Tensor:
        return kron(cohort, theta).flatten()

    def product(self, task: Task, rows: Tensor, vector: Tensor, delta: float = 0.0) -> Tensor:
        return Kron.unflatten(rows, task.layout).product(vector, delta)

    def logdet(self, task: Task, rows: Tensor, delta: float) -> Tensor:
        return Kron.unflatten(rows.double(), task.layout).logdet(delta)


STRUCTURES: dict[str, Structure] = {"diag": Diagonal(), "last": LastLayer(), "kron": Kronecker()}


def last_layer_ggn(cohort: Cohort, theta: Tensor) -> Tensor:
    """Σ_i H_i ⊗ x_i x_iᵀ over the last linear layer's inputs x, H_i the loss's curvature at the outputs; [C, p, p]."""
    task = cohort.task
    prefix = list(linear_layers(task))[-1]
    bias, size = f"{prefix}bias" in task.layout.names, _size(_last(task))
    total = theta.new_zeros(len(cohort), size, size)
    for row, inputs, targets in examples(cohort, CHUNK):
        x = layer_inputs(task, theta[row], inputs)[prefix]
        hessian = output_hessian(task.objective, outputs(task, theta[row], inputs), targets).flatten(0, -3)
        total[row] += linear_ggn(x, hessian, bias)
    return total


def _last(task: Task) -> slice:
    """Where the last linear layer's weights lie in theta, and its biases, which follow them."""
    prefix, slices = list(linear_layers(task))[-1], task.layout.slices()
    weight = slices[f"{prefix}weight"]
    return slice(weight.start, slices.get(f"{prefix}bias", weight).stop)


def _size(place: slice) -> int:
    size: int = place.stop - place.start
    return size
