"""What every rank knows alike and nothing changes: the model, the data, the clients, the streams."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedddp.core.data import Dataset
from fedddp.core.objective import Objective
from fedddp.core.params import Layout
from fedddp.core.rng import Streams
from fedddp.core.shards import Shards

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Task:
    module: nn.Module  # a skeleton: its parameters always come from a flat vector
    layout: Layout
    objective: Objective
    data: Dataset
    shards: Shards
    streams: Streams
    rounds: int
    initial: Tensor  # [P] the network's initialisation
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU
    unseen: Shards = field(default_factory=Shards.none)  # of clients that never train

    @property
    def num_clients(self) -> int:
        return self.shards.num_clients

    @property
    def everyone(self) -> Shards:
        """Of the clients that train, and behind them those that never do."""
        return self.shards.beside(self.unseen)

    @property
    def num_examples(self) -> Tensor:
        """[K] examples of each client."""
        return self.shards.num_examples

    def outputs(self, theta: Tensor, stored: Tensor) -> Tensor:
        """The model's outputs for stored inputs, wherever they are, at theta [P], without dropout."""
        self.module.eval()
        inputs = self.data.prepare(stored.to(self.device), self.dtype)
        output: Tensor = functional_call(self.module, self.layout.views(theta), (inputs,))
        return output
