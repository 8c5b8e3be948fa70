"""Frozen parameters: nobody federates, sends or keeps them; and no model ever sees an empty batch."""

import pytest
import torch
from safetensors import safe_open
from torch import Tensor, nn

import fedddp
from fedddp.clients.cohort import Cohort
from fedddp.clients.curvature import ggn_diag, squared_grads
from fedddp.config import loading as configuration
from fedddp.core.model import call
from fedddp.runs.build import make_oracle, make_task
from tests.small import fresh, run, settings

CPU = torch.device("cpu")
PATH = f"{__file__}:Frozen"


class Output(dict):
    """As libraries return it."""


class Frozen(nn.Module):
    """Half of it is drawn and stays; it takes no empty batch, and gives a library's object."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 12), nn.Linear(12, 10)
        self.body.requires_grad_(False)

    def forward(self, inputs: Tensor) -> Output:
        assert len(inputs), "an empty batch"
        return Output(logits=self.head(self.body(inputs.flatten(1)).tanh()))


def words(method: str, *more: str) -> list[str]:
    return settings(method, f"model={PATH}", *more)


def test_only_what_is_trained_is_federated_sent_and_kept(exchange, tmp_path):
    config = configuration.load(None, words("fedavg", "checkpoint.keep_clients=true", "checkpoint.every=1"))
    done = run(config, fresh(tmp_path, "run"))
    kept = sorted((tmp_path / "run" / "checkpoints").glob("*/server.safetensors"))
    with safe_open(kept[-1], framework="pt") as file:
        assert [file.get_tensor(name).numel() for name in file.keys()] == [130]  # noqa: SIM118
    assert done is not None
    metrics = fedddp.load(tmp_path / "run").metrics
    assert set(metrics["bytes_down"]) == {4 * 130}
    assert set(metrics["bytes_up"]) < set(range(4 * 130, 4 * 130 + 9))  # and a mean's weight


def test_a_frozen_part_drawn_from_the_seed_is_drawn_again_to_predict(exchange, tmp_path):
    config = configuration.load(None, words("fedavg"))
    run(config, fresh(tmp_path, "run"))
    task = make_task(config, CPU)
    found = fedddp.load(tmp_path / "run", trust=True)
    inputs = task.data.test.inputs[:5]
    theta = found.trained.point[0]
    assert torch.equal(found.trained.task.module.body.weight, task.module.body.weight)
    wanted = task.outputs(theta, inputs).double().softmax(-1)
    assert torch.equal(found.predict(inputs)["probabilities"], wanted)


@pytest.mark.parametrize("method", ["fedavg", "bayes_admm", "local"])
def test_a_rank_without_work_calls_no_model(worlds, tmp_path, method):
    """Two clients and one chunk of test examples, on three ranks."""
    given = words(method, "split.clients=2", "evaluation.samples=2")
    sums = {n: worlds(n).run(run, given, fresh(tmp_path, f"{n}"))[0] for n in (1, 3)}
    assert sums[1]["checksum"] == sums[3]["checksum"]
    assert sums[1]["nll"] == sums[3]["nll"]


def test_curvature_of_the_trained_part_alone():
    config = configuration.load(None, words("fedavg", "federation.dtype=float64"))
    task = make_task(config, CPU)
    cohort = Cohort((0,), 0, task, make_oracle(config, task))
    theta = task.initial[None]
    wanted = torch.zeros_like(theta[0])
    for batch in cohort.everything(1):
        leaf = theta[0].clone().requires_grad_()
        outputs = call(task.module, task.layout.views(leaf), batch.inputs[0])
        loss = task.objective.loss(outputs, batch.targets[0]).sum()
        wanted += torch.autograd.grad(loss, leaf)[0] ** 2
    with torch.no_grad():
        torch.testing.assert_close(squared_grads(cohort, theta)[0], wanted)
        assert ggn_diag(cohort, theta).shape == (1, 130)
