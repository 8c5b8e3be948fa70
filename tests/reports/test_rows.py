"""Which runs are averaged, what a row is called, and that the test set never chooses."""

import shutil

import pytest
import torch

from fedddp import reports
from fedddp.core.objective import OBJECTIVES, Binary, MultiLabel, NextToken, SquaredError
from fedddp.reports.numbers import more_is_better
from fedddp.reports.rows import best, group
from fedddp.reports.runs import read
from tests.reports.conftest import write_run


def labels(folders, by=("method",)):
    return [(row.label, len(row.runs)) for row in group(read(folders), by)]


def test_only_runs_that_differ_in_seeds_alone_are_averaged(sweep):
    assert labels([sweep]) == [
        ({"method.name": "fedavg", "local.lr": 0.02}, 3),
        ({"method.name": "fedavg", "local.lr": 0.2}, 3),
        ({"method.name": "fedprox", "local.lr": 0.1}, 3),
    ]


def test_a_run_made_twice_counts_once(sweep, tmp_path):
    shutil.copytree(sweep / "0", tmp_path / "again")
    assert [count for _, count in labels([sweep, tmp_path])] == [3, 3, 3]


def test_every_kind_of_seed_is_a_seed(tmp_path):
    for number, settings in enumerate([{"seed": 1}, {"split": {"seed": 4}}, {"data": {"fraction_seed": 9}}]):
        write_run(tmp_path / str(number), settings, {"accuracy": [0.5]})
    # keys that only one of the runs has are different settings, but for their seeds
    assert [count for _, count in labels([tmp_path])] == [3]


def test_labels_are_as_few_as_tell_rows_apart(tmp_path):
    for number, (data, width) in enumerate([("mnist", 10), ("mnist", 20), ("heart", 20)]):
        settings = {"data": {"name": data, "pixels": data}, "model": {"name": "mlp", "width": width, "depth": width}}
        write_run(tmp_path / str(number), settings, {"accuracy": [0.5]})
    keys = ["method.name", "data.name", "model.depth"]
    assert [list(label) for label, _ in labels([tmp_path])] == [keys] * 3
    by = ["model.width", "method.name", "data.name"]
    assert [list(label) for label, _ in labels([tmp_path], ["model.width", "method"])] == [by] * 3


def test_a_key_that_no_run_has_is_an_error(sweep):
    with pytest.raises(ValueError, match=r"method.rho: no run has this key; choose from .*local.lr"):
        reports.make([sweep], by=["method.rho"])
    with pytest.raises(ValueError, match=r"method.rho: no run has this key"):
        reports.make([sweep], best_over=["method.rho"])


def test_the_best_of_a_real_sweep_is_the_best_on_the_held_out_part(sweep):
    made = reports.make([sweep], best_over=["local.lr"])
    runs = read([sweep])
    held_out = {
        lr: [reports.last_three(r, "validation_accuracy") for r in runs if r.config["local.lr"] == lr]
        for lr in (0.02, 0.2)
    }
    better = max(held_out, key=lambda lr: sum(held_out[lr]))
    rows = {record["method"]: record for record in made.table.records()}
    assert set(rows) == {"fedavg", "fedprox"}
    assert float(rows["fedavg"]["local.lr"]) == better
    assert f"fedavg: local.lr={better} chosen by validation_accuracy" in made.table.notes[0]


def test_the_test_set_never_chooses(tmp_path):
    """Whatever the test accuracies are, the choice is that of the held-out ones."""
    held_out = {0.1: 0.7, 0.5: 0.8, 0.9: 0.6}
    for trial, tested in enumerate([(0.9, 0.1, 0.5), (0.1, 0.9, 0.5), (0.0, 0.0, 1.0)]):
        folder = tmp_path / str(trial)
        for (rho, held), test in zip(held_out.items(), tested, strict=True):
            metrics = {"accuracy": [test] * 3, "validation_accuracy": [held] * 3}
            write_run(folder / str(rho), {"method": {"name": "fedavg", "rho": rho}}, metrics)
        kept, notes = best(read([folder]), ["method.rho"], "accuracy")
        assert [run.config["method.rho"] for run in kept] == [0.5]
        assert notes == [
            "fedavg: method.rho=0.5 chosen by validation_accuracy 0.8000, before method.rho=0.1 (0.7000), "
            "method.rho=0.9 (0.6000)"
        ]


def test_less_is_better_for_a_loss(tmp_path):
    for lr, nll in ((0.1, 0.9), (0.2, 0.4)):
        write_run(tmp_path / str(lr), {"local": {"lr": lr}}, {"nll": [1.0], "validation_nll": [nll]})
    kept, _ = best(read([tmp_path]), ["local.lr"], "nll")
    assert [run.config["local.lr"] for run in kept] == [0.2]


MORE = {"accuracy", "macro_f1", "micro_f1", "precision", "recall_at_5"}
LESS = {"nll", "ece", "brier", "perplexity", "rmse", "loss"}
NEITHER = {"entropy"}


def test_every_metric_of_an_objective_has_its_direction():
    """A new one has to be sorted in here."""
    labels = torch.tensor([[0, 1]])
    targets = {MultiLabel: labels, NextToken: labels, SquaredError: torch.zeros(1, 2)}
    found = set()
    for objective in (kind() for kind in OBJECTIVES.values()):
        outputs = torch.zeros(1, 2, 3) if isinstance(objective, NextToken) else torch.zeros(1, 2)
        outputs = outputs[:, :1] if isinstance(objective, Binary) else outputs
        tally = objective.tally(objective.probabilities(outputs), targets.get(type(objective), torch.tensor([1])))
        found |= set(objective.metrics(tally))
    assert found == MORE | LESS | NEITHER
    for name in found - NEITHER:
        for metric in (name, f"averaged_{name}", f"validation_{name}", f"{name}_min", f"{name}_max"):
            assert more_is_better(metric) == (name in MORE), metric
    assert more_is_better("ood_auroc")
    assert not more_is_better("dual_residual")


def test_without_a_held_out_part_there_is_no_choice(tmp_path):
    for lr in (0.1, 0.2):
        write_run(tmp_path / str(lr), {"local": {"lr": lr}}, {"accuracy": [lr]})
    with pytest.raises(
        ValueError, match=r"has no validation_accuracy, and the test set must not choose; .*data.validation=N"
    ):
        reports.make([tmp_path], best_over=["local.lr"])
