"""BatchNorm's running statistics: refused, frozen, averaged exactly, or each client's own."""

from pathlib import Path

import pytest
import torch
from torch import nn

import fedddp
from fedddp.clients.oracle import Oracle
from fedddp.config import loading as configuration
from fedddp.core.objective import CrossEntropy
from fedddp.core.params import Layout, freeze_batch_norm
from fedddp.runs.build import make_federation, make_task
from tests.small import fresh, run, settings

CPU = torch.device("cpu")
MODEL = f"model={Path(__file__).parents[1] / 'modules.py'}:ConvBatchNorm"
RESNET = ["model.name=resnet", "model.depth=20", "model.norm=batch"]


def words(method: str, kind: str, *more: str) -> list[str]:
    return settings(method, MODEL, f"model.buffers={kind}", "data.test_fraction=0.9", "federation.rounds=2", *more)


def net() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)]
    return nn.Sequential(*layers).double()


def test_layers_beside_each_other_move_their_own(exchange, tmp_path):
    """A network with many such layers trains; each one's statistics are as torch's own module would have them."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Conv2d(3, 3, 3), nn.BatchNorm2d(3), nn.Flatten()]
    module = nn.Sequential(*layers, nn.Linear(3 * 16, 5)).double()
    layout = Layout.of(module, buffers=True)
    state, theta = layout.state(module).double()[None].clone(), layout.flatten(dict(module.named_parameters()))[None]
    inputs, targets = torch.randn(1, 6, 1, 8, 8).double(), torch.randint(0, 5, (1, 6))
    Oracle(module, layout, CrossEntropy(), False)(theta, inputs, targets, buffers=state)
    module.train()(inputs[0])
    torch.testing.assert_close(state[0], layout.state(module).double(), rtol=1e-6, atol=1e-7)
    words = [*RESNET, "model.buffers=average", "data.test_fraction=0.95", "federation.rounds=1"]
    done = run(configuration.load(None, settings("fedavg", *words)), fresh(tmp_path, "resnet"))
    assert done is not None


@pytest.mark.parametrize("short", [False, True])
def test_looped_and_vectorised_move_the_same_buffers(short):
    module = net()
    layout = Layout.of(module, buffers=True)
    assert layout.buffers == ("1.running_mean", "1.running_var", "1.num_batches_tracked")
    theta, inputs = torch.randn(3, layout.numel).double(), torch.randn(3, 6, 1, 8, 8).double()
    targets = torch.randint(0, 5, (3, 6))
    weights = None
    if short:
        weights = torch.ones(3, 6).double()
        weights[2, 4:] = 0
        inputs[2, 4:] = 1e6  # padding must not be seen
    found = {}
    for vectorise in (True, False):
        state = layout.state(module).double().repeat(3, 1)
        oracle = Oracle(module, layout, CrossEntropy(), vectorise)
        for _ in range(2):
            grad, loss = oracle(theta, inputs, targets, weights, buffers=state)
        found[vectorise] = grad, loss, state
    for ours, theirs in zip(*found.values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    alone = net().train()
    alone.load_state_dict(layout.views(theta[2]), strict=False)
    used = inputs[2, :4] if short else inputs[2]
    alone(used), alone(used)
    torch.testing.assert_close(layout.of_buffers(found[False][2])["1.running_var"][2], alone[1].running_var)
    assert layout.of_buffers(found[False][2])["1.num_batches_tracked"].tolist() == [2, 2, 2]


def test_frozen_statistics_are_used_and_not_moved():
    module = net()
    freeze_batch_norm(module)
    before = module[1].running_mean.clone()
    x = torch.randn(6, 1, 8, 8).double()
    assert torch.equal(module.train()(x), module.eval()(x))
    assert torch.equal(module[1].running_mean, before)


def test_the_average_is_weighted_by_examples(exchange):
    config = configuration.load(None, words("fedavg", "average", "federation.dtype=float64"))
    federation = make_federation(config, make_task(config, CPU), exchange)
    server = federation.method.init_server(federation.task)
    seen = {}

    def watch(phase, server, memory, cohort, local, inner=federation.method._work):
        memory, message = inner(phase, server, memory, cohort, local)
        rows = zip(cohort.ids, cohort.state, strict=True)
        seen.update({client: (row, cohort.sizes[n]) for n, (client, row) in enumerate(rows)})
        return memory, message

    federation.method._work = watch
    server, report = federation.round(server, 0)
    total = sum(float(size) for _, size in seen.values())
    wanted = sum(row * float(size) / total for row, size in seen.values())
    torch.testing.assert_close(server.buffers, wanted, rtol=1e-12, atol=1e-12)
    assert report.bytes_down == 8 * (federation.task.layout.numel + 9)
    assert federation.method.models(server).shape == (1, federation.task.layout.numel + 9)


FED_BN = "method.personal=[BatchNorm2d]"  # with model.buffers=local


def test_with_own_layers_of_normalisation_a_client_keeps_all_of_them(exchange):
    """FedBN: statistics, scale and shift are the client's; SiloBN's clients share scale and shift."""
    found = {}
    for name, more in {"FedBN": [FED_BN], "SiloBN": []}.items():
        config = configuration.load(None, words("fedavg", "local", *more))
        federation = make_federation(config, make_task(config, CPU), exchange)
        server, report = federation.round(federation.method.init_server(federation.task), 0)
        layout = federation.task.layout
        models = federation.own_models(server)
        seen = layout.views(models[:, : layout.numel]) | layout.of_buffers(models[:, layout.numel :])
        assert {layer for layer, value in seen.items() if len(value.reshape(len(value), -1).unique(dim=0)) > 1} == {
            "norm.running_mean", "norm.running_var", "norm.num_batches_tracked",
            *(("norm.weight", "norm.bias") if name == "FedBN" else ()),
        }  # fmt: skip
        found[name] = report.bytes_up
    assert found["SiloBN"] - found["FedBN"] == 4 * 4 * 2, "scale and shift of four channels"


@pytest.mark.parametrize("kind", ["average", "local", "freeze", "FedBN"])
def test_same_bits_on_any_number_of_ranks_and_after_a_stop(worlds, tmp_path, kind):
    more = [FED_BN] if kind == "FedBN" else []
    for method in ("fedavg", "bayes_admm"):
        given = words(
            method,
            "local" if more else kind,
            *more,
            "federation.rounds=3",
            "checkpoint.every=1",
            "evaluation.samples=2",
        )
        done = {n: worlds(n).run(run, given, fresh(tmp_path, f"{method}{n}"))[0] for n in (1, 3)}
        assert done[1]["checksum"] == done[3]["checksum"]
        assert done[1]["nll"] == done[3]["nll"]
        folder = fresh(tmp_path, f"{method}-parts")
        assert worlds(3).run(run, given, folder, False, 2) == [None] * 3
        resumed = worlds(1).run(run, given, folder, True)[0]
        assert (resumed["checksum"], resumed["nll"]) == (done[1]["checksum"], done[1]["nll"])


def test_a_finished_run_predicts_with_its_statistics(exchange, tmp_path):
    given = words("bayes_admm", "average", "evaluation.samples=2", "evaluation.every=1")
    config = configuration.load(None, given)
    run(config, fresh(tmp_path, "run"))
    found = fedddp.load(tmp_path / "run", trust=True)
    task = make_task(config, CPU)
    assert found.trained.point.shape[1] == task.layout.numel + 9
    assert float(found.model.norm.num_batches_tracked) > 0
    probabilities = found.predict(task.data.test.inputs, samples=2)["probabilities"]
    metrics = task.objective.metrics(task.objective.tally(probabilities, task.data.test.targets))
    assert metrics["nll"] == pytest.approx(found.summary["averaged_nll"], rel=1e-9)


def test_methods_that_look_at_models_without_them_say_so(exchange, tmp_path):
    for method in ("fisher_merge", "fedfisher"):
        with pytest.raises(Exception, match=r"choose model\.buffers=freeze"):
            run(configuration.load(None, words(method, "average")), fresh(tmp_path, method))


def test_a_resnet_with_batch_norm_is_refused_with_the_remedy():
    with pytest.raises(ValueError, match=r"choose model.buffers=average \(over clients\), local"):
        make_task(configuration.load(None, settings("fedavg", *RESNET)), CPU)
