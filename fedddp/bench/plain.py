"""What a careful person writes by hand: a module and an optimiser per client, one after the other, one all_reduce."""

from typing import Any

import torch
from torch import Tensor, nn

from fedddp.bench.contender import Contender
from fedddp.config import Config
from fedddp.exchange import Exchange
from fedddp.rng import permutations
from fedddp.task import Task


class Plain(Contender):
    """Federated averaging (or, with ivon-opt, precision-weighted averaging) as a loop over this rank's clients."""

    def __init__(self, task: Task, config: Config, clients: list[int], exchange: Exchange) -> None:
        self.task, self.local, self.solver, self.exchange = task, config.local, config["local.name"], exchange
        self.method = config.method
        self.precision: Tensor | None = None  # of the server, which ivon-opt's curvature goes on from
        self.module = task.module
        self.inputs = task.data.prepare(task.data.train.inputs, task.dtype)  # floats in memory: the quickest to read
        self.targets = task.data.train.targets
        self.clients, self.theta = clients, task.initial

    def round(self, number: int) -> None:
        """The server's parameters after every client's epoch."""
        theta = self.theta
        top, bottom = torch.zeros_like(theta), torch.zeros_like(theta)
        for client in self.clients:
            nn.utils.vector_to_parameters(theta.clone(), self.module.parameters())  # parameters become views of it
            weight = self._train(client, number)
            top += weight * nn.utils.parameters_to_vector(self.module.parameters()).detach()
            bottom += weight
        both = torch.cat([top, bottom])
        self.exchange.add_floats(both)
        top, bottom = both.chunk(2)
        self.precision = bottom / self.task.num_clients
        self.theta = top / bottom

    def _train(self, client: int, number: int) -> Tensor | float:
        """An epoch on one client's data, in the order that fedddp takes; the client's weight in the average."""
        self.module.train()
        index = self.task.shards.of_client(client)
        key = torch.tensor([self.task.streams.key("order", number, client)])
        order = index[permutations(key, torch.tensor([len(index)]))[0]]
        optimiser = self._optimiser(len(index))
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
            return self._ivon(parameters, count / (self.method.rho * self.method.temperature))
        if self.solver == "adam":
            return torch.optim.Adam(parameters, lr=self.local.lr)
        return torch.optim.SGD(parameters, lr=self.local.lr)

    def _ivon(self, parameters: Any, ess: float) -> Any:
        import ivon

        options = {"beta2": self.local.beta2, "hess_init": self.local.hess_init, "weight_decay": 1e-6}
        optimiser = ivon.IVON(parameters, lr=self.local.lr, ess=ess, rescale_lr=False, **options)
        if self.precision is not None:
            optimiser.param_groups[0]["hess"].copy_(self.precision / ess)
        return optimiser

    def _step(self, optimiser: Any, inputs: Tensor, targets: Tensor) -> None:
        if self.solver == "ivon":
            with optimiser.sampled_params(train=True):
                optimiser.zero_grad()
                self.task.objective.loss(self.module(inputs), targets).mean().backward()
        else:
            optimiser.zero_grad()
            self.task.objective.loss(self.module(inputs), targets).mean().backward()
        optimiser.step()
