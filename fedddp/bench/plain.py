"""What a careful person writes by hand: a module and an optimiser per client, one after the other, one all_reduce."""

from typing import Any

import torch
from torch import Tensor, nn

from fedddp.exchange import Exchange
from fedddp.task import Task


class Plain:
    """Federated averaging (or, with ivon-opt, precision-weighted averaging) as a loop over this rank's clients."""

    def __init__(self, task: Task, local: Any, solver: str, clients: list[int], exchange: Exchange) -> None:
        self.task, self.local, self.solver, self.exchange = task, local, solver, exchange
        self.module = task.module
        self.inputs = task.data.prepare(task.data.train.inputs, task.dtype)  # floats in memory: the quickest to read
        self.targets = task.data.train.targets
        self.clients = [(task.shards.of_client(c), torch.Generator().manual_seed(c)) for c in clients]

    def round(self, theta: Tensor) -> Tensor:
        """The server's parameters after every client's epochs."""
        top, bottom = torch.zeros_like(theta), torch.zeros_like(theta)
        for index, generator in self.clients:
            nn.utils.vector_to_parameters(theta.clone(), self.module.parameters())  # parameters become views of it
            weight = self._train(index, generator)
            top += weight * nn.utils.parameters_to_vector(self.module.parameters()).detach()
            bottom += weight
        both = torch.cat([top, bottom])
        self.exchange.add_floats(both)
        top, bottom = both.chunk(2)
        return top / bottom

    def _train(self, index: Tensor, generator: torch.Generator) -> Tensor | float:
        """Epochs on one client's data; its weight in the average."""
        self.module.train()
        optimiser = self._optimiser(len(index))
        for _ in range(self.local.epochs):
            order = index[torch.randperm(len(index), generator=generator)]
            for batch in order.split(self.local.batch_size):
                self._step(optimiser, self.inputs[batch], self.targets[batch])
        if self.solver != "ivon":
            return float(len(index))
        group = optimiser.param_groups[0]
        precision: Tensor = group["ess"] * (group["hess"] + group["weight_decay"])
        return precision

    def _optimiser(self, count: int) -> Any:
        parameters = self.module.parameters()
        if self.solver == "ivon":
            import ivon

            options = {"ess": count / 0.1, "hess_init": self.local.hess_init, "weight_decay": 1e-6}
            return ivon.IVON(parameters, lr=self.local.lr, beta2=self.local.beta2, rescale_lr=False, **options)
        if self.solver == "adam":
            return torch.optim.Adam(parameters, lr=self.local.lr)
        return torch.optim.SGD(parameters, lr=self.local.lr)

    def _step(self, optimiser: Any, inputs: Tensor, targets: Tensor) -> None:
        if self.solver == "ivon":
            with optimiser.sampled_params(train=True):
                optimiser.zero_grad()
                self.task.objective.loss(self.module(inputs), targets).mean().backward()
        else:
            optimiser.zero_grad()
            self.task.objective.loss(self.module(inputs), targets).mean().backward()
        optimiser.step()
