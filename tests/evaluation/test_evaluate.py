"""Evaluation by averaging over a posterior, uncertainty, export and prediction."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from sklearn.metrics import roc_auc_score
from torch import nn

from fedddp.cli import main
from fedddp.config import loading as configuration
from fedddp.core import gaussian
from fedddp.core.data import Dataset, Examples
from fedddp.core.params import Layout
from fedddp.data.digits import Source
from fedddp.evaluation.evaluate import Evaluator, entropies, evaluate
from fedddp.evaluation.evaluators import other_data
from fedddp.evaluation.posterior import Samples, auroc, entropy
from fedddp.evaluation.predictions import chunk_size
from fedddp.runs.build import make_federation, make_task
from fedddp.runs.job import Job
from fedddp.runs.predict import load, predict
from tests import toy
from tests.small import MODELS, fresh, run, settings

CPU = torch.device("cpu")
QUICK = ["evaluation.samples=5", "evaluation.ood=digits", "federation.rounds=2"]


@pytest.fixture(scope="module")
def finished(exchange, tmp_path_factory):
    """A short run of bayes_admm: its folder and its summary."""
    folder = tmp_path_factory.mktemp("run") / "bayes"
    config = configuration.load(None, settings("bayes_admm", *MODELS["mlp"], *QUICK, "evaluation.histograms=1"))
    return folder, Job(config, folder, exchange, CPU, quiet=True).run(False)


@pytest.fixture(scope="module")
def federation(exchange):
    config = configuration.load(None, settings("bayes_admm", *MODELS["mlp"]))
    return make_federation(config, make_task(config, CPU), exchange)


def posterior(task, scale=300.0):
    generator = torch.Generator().manual_seed(1)
    precision = scale * (1 + torch.rand(len(task.initial), generator=generator))
    return gaussian.diagonal.natural(task.initial, precision)


@pytest.mark.parametrize("covariance", gaussian.FAMILIES)
def test_samples_have_the_learned_mean_and_precision(covariance):
    family, size = gaussian.FAMILIES[covariance], 6
    root = torch.randn(size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    full = root @ root.T + torch.eye(size, dtype=torch.float64)
    precision = {"full": full, "diagonal": full.diagonal(), "isotropic": full.diagonal().mean()[None]}[covariance]
    mean = torch.arange(size, dtype=torch.float64)
    drawn = torch.stack(list(Samples(family.natural(mean, precision), 4000, seed=3, round=1)))
    matrix = precision if covariance == "full" else torch.diag(precision.expand(size))
    covariance_matrix = torch.linalg.inv(matrix)
    assert (drawn.mean(0) - mean).abs().max() < 4 * (covariance_matrix.diagonal().max() / 4000).sqrt()
    assert (torch.cov(drawn.T) - covariance_matrix).norm() < 0.1 * covariance_matrix.norm()


def test_samples_are_the_same_in_every_look_and_new_in_every_round(federation):
    lam = posterior(federation.task)
    first, again, later = (list(Samples(lam, 3, 0, number)) for number in (4, 4, 5))
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], later[0])


def test_averaged_metrics_are_those_of_the_mean_of_predictions(federation):
    task = federation.task
    lam = posterior(task)
    server = federation.method.init_server(task)._replace(lam=lam)
    found = Evaluator(federation, samples=4)(server, 7).metrics
    each = [
        task.outputs(theta, task.data.test.inputs).double().softmax(1)
        for theta in Samples(lam, 4, task.streams.seed, 7)
    ]
    mean = torch.stack(each).mean(0)
    right = (mean.argmax(1) == task.data.test.targets).double().mean()
    nll = -mean.gather(1, task.data.test.targets.unsqueeze(1)).log().mean()
    assert found["averaged_accuracy"] == pytest.approx(float(right), abs=1e-12)
    assert found["averaged_nll"] == pytest.approx(float(nll), abs=1e-9)
    assert found["averaged_entropy"] == pytest.approx(float(entropy(mean).mean()), abs=1e-9)
    assert found["accuracy"] == evaluate(task, federation.exchange, server.theta[None])["accuracy"]
    assert set(Evaluator(federation, samples=0)(server, 7).metrics) == {
        n for n in found if not n.startswith("averaged")
    }


def test_every_rank_knows_the_entropy_of_every_prediction(federation):
    task = federation.task
    probabilities = task.outputs(task.initial, task.data.test.inputs).double().softmax(1)
    found = entropies(task, federation.exchange, task.initial[None], task.data.test)
    assert len(found) > 1000  # more than one chunk
    torch.testing.assert_close(found, entropy(probabilities))


def test_auroc_is_sklearns():
    generator = torch.Generator().manual_seed(0)
    inside = torch.randint(0, 9, (200,), generator=generator).double()
    outside = torch.randint(3, 12, (150,), generator=generator).double()
    truth = roc_auc_score([0] * 200 + [1] * 150, torch.cat([inside, outside]).numpy())
    assert auroc(inside, outside) == pytest.approx(truth, abs=1e-12)
    assert auroc(inside, inside) == 0.5


def test_strangers_must_fit_the_model(federation):
    task = federation.task
    assert other_data("", task, "") is None
    other = replace(task, data=replace(task.data, test=replace(task.data.test, inputs=torch.zeros(5, 3, 3))))
    with pytest.raises(ValueError, match=r"evaluation.ood=digits: its inputs are \(8, 8\)"):
        other_data("digits", other, "")
    with pytest.raises(ValueError, match="needs a classification"):
        other_data("digits", toy.task(), "")


def test_chunks_are_as_small_as_their_largest_layer_asks(federation, exchange, monkeypatch):
    """An image of 64 numbers is the most that this model sees; its rows have the same bits in any chunk."""
    task, models = federation.task, federation.task.initial.unsqueeze(0)
    assert chunk_size(task, task.data.test) == 1000
    uncertain, metrics = entropies(task, exchange, models, task.data.test), evaluate(task, exchange, models)
    monkeypatch.setattr("fedddp.evaluation.predictions.ROOM", 4 * 64 * 70)
    assert chunk_size(task, task.data.test) == 70
    assert torch.equal(entropies(task, exchange, models, task.data.test), uncertain)
    assert evaluate(task, exchange, models) == pytest.approx(metrics, rel=1e-12)
    assert not any(module._forward_hooks for module in task.module.modules())


@pytest.mark.parametrize(("words", "size"), [(1000, 1000), (20_000, 2**28 // (8 * 20 * 20_000))])
def test_a_vocabulary_counts_for_every_token(words, size):
    text = Examples(torch.zeros(3, 20, dtype=torch.long), torch.zeros(3, 20, dtype=torch.long))
    module = nn.Sequential(nn.Embedding(words, 4), nn.Linear(4, words))
    layout = Layout.of(module)
    data = Dataset(text, text, classes=words, tokens=True)
    task = replace(toy.task(), data=data, module=module, layout=layout, initial=torch.zeros(layout.numel))
    assert chunk_size(task, text) == size


def test_metrics_are_the_same_on_any_number_of_ranks(worlds, tmp_path):
    words = settings("bayes_admm", *MODELS["mlp"], *QUICK)
    one, three = (worlds(n).run(run, words, fresh(tmp_path, f"{n}"))[0] for n in (1, 3))
    names = [name for name in one if name.startswith("averaged_")]
    assert "averaged_ood_auroc" in names
    assert [one[name] for name in names] == [three[name] for name in names]


def test_a_reliability_diagram_and_an_entropy_histogram_go_to_tensorboard(finished):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(finished[0])).Reload().Tags()
    assert {f"2_uncertainty/test_{name}" for name in ("entropy", "averaged_entropy", "averaged_ood_entropy")} <= set(
        events["histograms"]
    )
    assert {"reliability", "averaged_reliability"} <= set(events["images"])


def test_predict_gives_what_the_run_measured(finished, tmp_path):
    folder, summary = finished
    test = Source(test_fraction=0.85).load().test
    np.savez(tmp_path / "in.npz", inputs=test.inputs.numpy())
    with pytest.raises(SystemExit) as end:
        main(["predict", str(folder), str(tmp_path / "in.npz"), "--out", str(tmp_path / "p.npz"), "--samples", "5"])
    assert end.value.code == 0
    found = np.load(tmp_path / "p.npz")
    right = (found["probabilities"].argmax(1) == test.targets.numpy()).mean()
    assert right == pytest.approx(summary["averaged_accuracy"], abs=1e-12)
    likelihood = found["probabilities"][np.arange(len(test)), test.targets.numpy()]
    assert -np.log(likelihood).mean() == pytest.approx(summary["averaged_nll"], rel=1e-5)
    assert found["entropy"].shape == found["mutual_information"].shape == (len(test),)
    assert (found["mutual_information"] <= found["entropy"]).all()


def test_a_few_lines_of_plain_torch_read_the_posterior(finished):
    folder, summary = finished
    posterior = load_file(folder / "posterior.safetensors")
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
    mean = {name: posterior[f"mean.{name}"] for name in model.state_dict()}
    model.load_state_dict(mean)
    test = Source(test_fraction=0.85).load().test
    right = (model(test.inputs * posterior["input.scale"].float()).argmax(1) == test.targets).double().mean()
    assert float(right) == pytest.approx(summary["accuracy"], abs=1e-12)
    assert all((posterior[f"precision.{name}"] > 0).all() for name in mean)


def test_inputs_of_the_wrong_shape_are_refused(finished, tmp_path):
    trained = load(finished[0])
    with pytest.raises(ValueError, match=r"inputs are \[4, 9\], the model takes \[N, 8, 8\]"):
        predict(trained, torch.zeros(4, 9))
    with pytest.raises(ValueError, match="no finished run here"):
        load(tmp_path)


@pytest.mark.parametrize(
    "words",
    [
        ["method=fedavg"],
        ["method=bayes_admm", "method.covariance=full", "local.name=von", "local.epochs=2", "model.name=logistic"],
        ["method=bayes_admm", "method.covariance=isotropic", "local.name=laplace", "local.lr=0.01"],
    ],
    ids=["point", "full", "isotropic"],
)
def test_every_kind_of_posterior_survives_export(exchange, tmp_path, words):
    words = [*settings(words[0].partition("=")[2], "federation.rounds=1", "evaluation.samples=3"), *words[1:]]
    folder = tmp_path / "run"
    summary = Job(configuration.load(None, words), folder, exchange, CPU, quiet=True).run(False)
    test = Source(test_fraction=0.85).load().test
    found = predict(load(folder), test.inputs, samples=3)["probabilities"]
    right = float((found.argmax(1) == test.targets).double().mean())
    assert right == pytest.approx(summary.get("averaged_accuracy", summary["accuracy"]), abs=2e-3)
