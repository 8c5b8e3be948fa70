"""The task of every script beside this one: Fashion-MNIST over 100 unequal clients, a network, how it is trained.

`python task.py` deals the data (as `fedddp bench` does for its workload a_sgd) and writes them to task.npz.
"""

import os
from functools import cache

import numpy as np
import torch
from torch import Tensor, nn

ROUNDS = int(os.environ.get("ROUNDS", "6"))
BATCH, RATE = 32, 0.5  # one local epoch a round
FILE = os.environ.get("TASK", "task.npz")
Pair = tuple[Tensor, Tensor]


class Net(nn.Sequential):
    def __init__(self) -> None:
        torch.manual_seed(0)
        layers = nn.Linear(784, 200), nn.Sigmoid(), nn.Linear(200, 100), nn.Sigmoid(), nn.Linear(100, 10)
        super().__init__(*layers)


@cache
def data() -> tuple[list[Pair], Pair]:
    """Each client's examples, and those of the test."""
    file = {name: torch.from_numpy(array) for name, array in np.load(FILE).items()}
    ends = file["sizes"].cumsum(0)[:-1]
    clients = zip(file["x"].tensor_split(ends), file["y"].tensor_split(ends), strict=True)
    return list(clients), (file["x_test"], file["y_test"])


def train(model: nn.Module, x: Tensor, y: Tensor) -> None:
    """An epoch of one client, for frameworks that leave it to their users."""
    optimiser = torch.optim.SGD(model.parameters(), lr=RATE)
    for batch in torch.randperm(len(x)).split(BATCH):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x[batch]), y[batch]).backward()
        optimiser.step()


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return float((model(x).argmax(1) == y).double().mean())


def write() -> None:
    from fedddp.bench.workloads import WORKLOADS
    from fedddp.config import loading
    from fedddp.runs.build import make_task

    task = make_task(loading.load(None, WORKLOADS["a_sgd"].settings), torch.device("cpu"))
    mixed = torch.randperm(len(task.data.train), generator=torch.Generator().manual_seed(0))
    place = mixed.argsort()  # not every framework shuffles a client's examples
    held = [task.shards.of_client(client) for client in range(task.num_clients)]
    order = torch.cat([ids[place[ids].argsort()] for ids in held])
    train, test = task.data.train, task.data.test
    x, x_test = (task.data.prepare(part.inputs, torch.float32).flatten(1).numpy() for part in (train, test))
    sizes = task.num_examples.long().numpy()
    np.savez(FILE, x=x[order], y=train.targets.numpy()[order], sizes=sizes, x_test=x_test, y_test=test.targets)


if __name__ == "__main__":
    write()
