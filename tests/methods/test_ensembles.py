"""One-shot methods as runs: the same bits on any number of ranks, and what the records say of an ensemble."""

import pytest
import torch

from fedddp.evaluation.evaluate import evaluate, evaluate_members
from fedddp.records.records import read_metrics
from tests.methods import given
from tests.small import MODELS, fresh, run, settings


def test_an_ensemble_is_judged_by_its_averaged_prediction_and_by_its_members(exchange):
    task = given.task(given.mlp(), (5,))
    models = given.around(task, spread=1.0)
    inputs, targets = task.data.test.inputs, task.data.test.targets
    with torch.no_grad():
        each = torch.stack([task.outputs(theta, inputs).softmax(1) for theta in models])
    right = (each.argmax(2) == targets).double().mean(1)
    found = evaluate(task, exchange, models)
    assert found["accuracy"] == pytest.approx(float((each.mean(0).argmax(1) == targets).double().mean()))
    assert found["nll"] == pytest.approx(float(-each.mean(0)[range(75), targets].log().mean()))
    assert 0 <= found["ece"] <= 1
    spread = evaluate_members(task, exchange, models)
    assert spread == pytest.approx({"accuracy_min": float(right.min()), "accuracy_max": float(right.max())})


def test_a_run_records_ensemble_and_members(exchange, tmp_path):
    summary = run(settings("fedbens", *MODELS["mlp"], "federation.rounds=1"), fresh(tmp_path, "run"))
    (record,) = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert record["accuracy_min"] <= record["accuracy_max"]
    assert {"nll", "ece", "bytes_up", "objective", "train_loss"} <= record.keys()
    assert summary["accuracy"] == record["accuracy"]


KRON = {
    "fedbens": ["method.structure=kron", "method.members=3", "method.steps=6", "method.mixtures=[1,2,3,1,2,3,1]"],
    "fedfisher": ["method.fisher=kfac", "method.steps=6", "method.bits=8", "method.rank=3"],
}


@pytest.mark.parametrize("method", KRON)
def test_descents_on_kronecker_factors_have_the_same_bits_on_any_number_of_ranks(worlds, tmp_path, method):
    """The sweep over methods has GroupNorm in its model, which K-FAC refuses."""
    words = [*settings(method, *MODELS["mlp"]), *KRON[method], "federation.rounds=2", "data.test_fraction=0.92"]
    one, three = (worlds(n).run(run, words, fresh(tmp_path, f"{n}"))[0]["checksum"] for n in (1, 3))
    assert one == three
