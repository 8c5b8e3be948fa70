"""The bench of K-FAC compares two ways to the same matrix."""

import torch

from fedddp.bench.curvature import line, measure
from fedddp.clients.cohort import Cohort
from fedddp.clients.oracle import Oracle
from fedddp.config import loading as configuration
from fedddp.runs.build import make_task
from tests.small import MODELS, settings


def test_both_ways_give_the_same_products():
    words = settings("fedavg", *MODELS["mlp"], "federation.dtype=float64")
    task = make_task(configuration.load(None, words), torch.device("cpu"))
    row = measure(Cohort((0,), 0, task, Oracle(task.module, task.layout, task.objective)), turns=1)
    assert row["apart"] < 1e-8
    assert row["fedddp"] > 0 < row["laplace"]
    assert f"{row['faster']:.2f}x faster" in line(row)
