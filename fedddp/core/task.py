"""What every rank knows alike and nothing changes: the model, the data, the clients, the streams."""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from fedddp.core.data import Dataset
from fedddp.core.model import call
from fedddp.core.objective import Objective
from fedddp.core.params import Layout
from fedddp.core.record import Record
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
    state: Tensor | None = None  # [S] its buffers', where they are federated
    dtype: torch.dtype = torch.float32
    device: torch.device = CPU
    unseen: Shards = field(default_factory=Shards.none)  # of clients that never train
    record: Record | None = None  # how a server's repeated work is recorded on the device, where it is

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

    @property
    def start(self) -> Tensor:
        """The whole initial model: [P], or [P + S] with its buffers."""
        return self.initial if self.state is None else torch.cat([self.initial, self.state])

    def outputs(self, theta: Tensor, stored: Tensor) -> Tensor:
        """The model's outputs for stored inputs, wherever they are, at theta [P] or [P + S], without dropout."""
        return self.evaluate(theta, self.data.prepare(stored.to(self.device), self.dtype))

    def evaluate(self, theta: Tensor, inputs: Tensor) -> Tensor:
        """The same for inputs as the model sees them."""
        if self.state is not None and theta.shape[-1] == self.layout.numel:
            raise ValueError(
                "model.buffers: this method or solver looks at models without the buffers that they were trained "
                "with (running statistics); choose model.buffers=freeze, or another method"
            )
        self.module.eval()
        return call(self.module, self.layout.views(theta), inputs)
