"""K-FAC of a client's data beside laplace-torch's, in turn: LeNet at its start, 2,000 images of Fashion-MNIST.

`apart` is the norm of the difference between the two matrices' products with a random vector, as a share of theirs, so
that equal work is visible. (laplace-torch's diagonal of the same network takes minutes: nothing to compare.)
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from laplace import Laplace
from laplace.curvature import CurvlinopsGGN
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from fedddp.bench.workloads import COMMON
from fedddp.clients.cohort import Cohort
from fedddp.clients.kron import CHUNK, kron
from fedddp.config import loading as configuration
from fedddp.core.rng import stream
from fedddp.exchange.group import Exchange
from fedddp.runs.build import make_federation, make_task

ONE = ["model.name=lenet", "data.fraction=0.033334", "split.name=iid", "split.clients=1", "method=fedavg"]
TURNS = 9


def call(words: list[str], exchange: Exchange) -> list[dict[str, Any]]:
    settings = [w for w in COMMON if not w.startswith("split.")]
    config = configuration.load(None, [*settings, *ONE, *words])
    task = make_task(config, exchange.device)
    row = measure(Cohort((0,), 0, task, make_federation(config, task, exchange).oracle))
    if exchange.rank == 0:
        print(line(row), flush=True)
    return [row]


def measure(cohort: Cohort, turns: int = TURNS) -> dict[str, Any]:
    """Seconds, medians over turns after one to warm up; the ratio is the median of the turns' ratios."""
    theta = cohort.task.initial[None]
    vector = torch.randn(theta.shape, generator=stream("curvature")).to(theta)
    ours, theirs = (lambda: kron(cohort, theta).product(vector)[0]), _theirs(cohort, vector[0])
    taken = [(_seconds(ours), _seconds(theirs)) for _ in range(turns + 1)][1:]
    one, other = ours(), theirs()
    return {
        "workload": "curvature",
        "fedddp": statistics.median(a for a, _ in taken),
        "laplace": statistics.median(b for _, b in taken),
        "faster": statistics.median(b / a for a, b in taken),
        "apart": float((one - other).norm() / other.norm()),
    }


def _theirs(cohort: Cohort, vector: Tensor) -> Callable[[], Tensor]:
    """The module is where the task's initial parameters come from, so it is at them."""
    task = cohort.task
    train = task.data.train.take(task.shards.of_client(0))
    loader = DataLoader(TensorDataset(task.data.prepare(train.inputs, task.dtype), train.targets), batch_size=CHUNK)

    def fit() -> Tensor:
        with torch.enable_grad():
            found: Any = Laplace(task.module, "classification", "all", "kron", backend=CurvlinopsGGN)
            found.fit(loader)
        product: Tensor = found.H.bmm(vector, exponent=1)
        return product.detach()

    return fit


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def line(row: dict[str, Any]) -> str:
    times = f"fedddp {row['fedddp']:.3f} s  laplace-torch {row['laplace']:.3f} s"
    return f"curvature  K-FAC: {times}  {row['faster']:.2f}x faster  apart {row['apart']:.0e}"
