"""What a careful person writes by hand: a module and an optimiser per client, one after the other, one all_reduce."""

from typing import Any

import torch
from torch import Tensor, nn

from fedddp.bench.contender import Contender
from fedddp.config.loading import Config
from fedddp.core.rng import permutations
from fedddp.core.task import Task
from fedddp.exchange.group import Exchange
from fedddp.local import ivon
from fedddp.methods import bayes_admm
from fedddp.runs.build import make_module


class Plain(Contender):
    """Federated averaging as a loop over this rank's clients."""

    def __init__(self, task: Task, config: Config, clients: list[int], exchange: Exchange) -> None:
        self.task, self.solver, self.exchange = task, config["local.name"], exchange
        self.lr, self.batch_size = config["local.lr"], config["local.batch_size"]
        self.module, _ = make_module(config, task.data, task.objective.outputs(task.data), task.dtype)
        self.inputs = task.data.prepare(task.data.train.inputs, task.dtype)  # floats in memory: the quickest to read
        self.targets = task.data.train.targets
        self.clients, self.theta = clients, task.initial

    def round(self, number: int) -> None:
        """The server's parameters after every client's epoch."""
        total = torch.zeros_like(self.theta)
        for client in self.clients:
            self._train(client, number, self._optimiser(self.theta))
            total += len(self.task.shards.of_client(client)) * self._parameters()
        self.theta = self.exchange.add_floats(total) / int(self.task.num_examples.sum())

    def _optimiser(self, theta: Tensor) -> Any:
        """At the server's parameters, with no memory of earlier rounds."""
        nn.utils.vector_to_parameters(theta.clone(), self.module.parameters())  # parameters become views of it
        kind = torch.optim.Adam if self.solver == "adam" else torch.optim.SGD
        return kind(self.module.parameters(), lr=self.lr)

    def _train(self, client: int, number: int, optimiser: Any) -> None:
        """An epoch on one client's data, in the order that fedddp takes."""
        self.module.train()
        index = self.task.shards.of_client(client)
        key = torch.tensor([self.task.streams.key("order", number, client)])
        order = index[permutations(key, torch.tensor([len(index)]), len(index))[0]]
        for batch in order.split(self.batch_size):
            self._step(optimiser, self.inputs[batch], self.targets[batch])

    def _step(self, optimiser: Any, inputs: Tensor, targets: Tensor) -> None:
        self._backward(optimiser, inputs, targets)
        optimiser.step()

    def _backward(self, optimiser: Any, inputs: Tensor, targets: Tensor) -> None:
        optimiser.zero_grad()
        self.task.objective.loss(self.module(inputs), targets).mean().backward()

    def _parameters(self) -> Tensor:
        return nn.utils.parameters_to_vector(self.module.parameters()).detach()


class PlainBayes(Plain):
    """BayesADMM around ivon-opt. Natural parameters are (precision x mean, precision), [2, P].

    A client's cavity N(c/C, 1/C) goes in as ivon-opt's weight decay C/ess and as a shift c/ess of the gradient, which
    leaves its estimate of curvature alone.
    """

    def __init__(self, task: Task, config: Config, clients: list[int], exchange: Exchange) -> None:
        super().__init__(task, config, clients, exchange)
        assert isinstance(config.method, bayes_admm.Method)
        assert isinstance(config.local, ivon.Solver)
        self.method, self.ivon = config.method, config.local
        prior = torch.full_like(self.theta, self.method.delta)
        self.lam = self.sites = torch.stack([torch.zeros_like(prior), prior])
        self.duals = {client: torch.zeros_like(self.lam) for client in clients}

    def round(self, number: int) -> None:
        mean, change = torch.zeros_like(self.lam), torch.zeros_like(self.lam)
        for client in self.clients:
            own = self._posterior(client, number)
            step = self.method.damping * self.method.rho * (own - self.lam)
            self.duals[client] += step
            mean += own / self.task.num_clients
            change += step
        mean, change = self.exchange.add_floats(torch.stack([mean, change]))
        alpha = self.method.alpha or 1 / (1 + self.method.rho * self.task.num_clients)
        self.sites = self.sites + change
        self.lam = (1 - alpha) * mean + alpha * self.sites
        self.theta = self.lam[0] / self.lam[1]

    def _posterior(self, client: int, number: int) -> Tensor:
        """A client's natural parameters after its epoch."""
        optimiser, ess = self._ivon(client, number)
        self._train(client, number, optimiser)
        precision = ess * (optimiser.param_groups[0]["hess"] + optimiser.param_groups[0]["weight_decay"])
        return torch.stack([precision * self._parameters(), precision])

    def _ivon(self, client: int, number: int) -> tuple[Any, float]:
        from ivon import IVON

        nn.utils.vector_to_parameters(self.theta.clone(), self.module.parameters())
        ess = len(self.task.shards.of_client(client)) / (self.method.rho * self.method.temperature)
        options = {"lr": self.ivon.lr, "beta2": self.ivon.beta2, "rescale_lr": False}
        optimiser = IVON(self.module.parameters(), ess=ess, hess_init=self.ivon.hess_init, **options)
        shift, pull = (self.lam - self.duals[client] / self.method.rho) / ess
        group = optimiser.param_groups[0]
        group["weight_decay"], self.shift = pull, shift
        group["hess"] = self.lam[1] / ess - pull + (self.ivon.hess_init if number == 0 else 0)
        return optimiser, ess

    def _step(self, optimiser: Any, inputs: Tensor, targets: Tensor) -> None:
        with optimiser.sampled_params(train=True):
            self._backward(optimiser, inputs, targets)
        optimiser.state["avg_grad"].sub_(self.shift)
        optimiser.step()
