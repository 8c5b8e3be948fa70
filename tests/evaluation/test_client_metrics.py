"""Evaluation per client: exact, the same on any number of ranks and after a stop, and free of influence on training."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import fedddp
from fedddp.config import loading as configuration
from fedddp.core.data import IGNORED
from fedddp.core.objective import Binary, CrossEntropy, MultiLabel, NextToken, SquaredError
from fedddp.records.metrics import read_metrics
from fedddp.records.table import FILE, Table, read_tables, summary
from tests.small import MODELS, fresh, run, settings

ON = "evaluation.clients=server"
WORDS = [*MODELS["mlp"], ON, "evaluation.samples=3", "federation.rounds=2", "split.unseen=1"]


def words(method: str, *more: str) -> list[str]:
    return settings(method, *WORDS, *more)


@pytest.mark.parametrize("objective", [CrossEntropy(), Binary(), NextToken(), MultiLabel(), SquaredError()])
def test_sums_by_group_are_those_of_each_group_alone(objective):
    generator = torch.Generator().manual_seed(0)
    group = torch.randint(3, (60,), generator=generator)
    outputs, targets = {
        CrossEntropy: lambda: (torch.randn(60, 4, generator=generator), torch.randint(4, (60,), generator=generator)),
        Binary: lambda: (torch.randn(60, 1, generator=generator), torch.randint(2, (60,), generator=generator)),
        NextToken: lambda: (
            torch.randn(60, 5, 4, generator=generator),
            torch.where(torch.rand(60, 5, generator=generator) < 0.3, IGNORED, 2),
        ),
        MultiLabel: lambda: (torch.randn(60, 7, generator=generator), torch.randint(2, (60, 7), generator=generator)),
        SquaredError: lambda: (torch.randn(60, 2, generator=generator), torch.randn(60, 2, generator=generator)),
    }[type(objective)]()
    predicted = objective.probabilities(outputs)
    found = objective.metrics_by(objective.tally_by(predicted, targets, group, 4))
    assert all(values.shape == (4,) and values[3].isnan() for values in found.values()), "a group without examples"
    for one in range(3):
        alone = objective.metrics(objective.tally(predicted[group == one], targets[group == one]))
        assert {name: float(values[one]) for name, values in found.items()} == pytest.approx(
            {name: alone[name] for name in found}, rel=1e-9
        )


def test_parts_make_up_the_test_set(exchange, tmp_path):
    done = run(words("bayes_admm"), str(tmp_path / "run"))
    table = read_tables(tmp_path / "run")[2]
    weight = table.columns["test_examples"]
    assert int(weight.sum()) > 1000
    for name in ("accuracy", "nll", "averaged_accuracy", "averaged_nll"):
        assert float((table.columns[name].nan_to_num() * weight).sum() / weight.sum()) == pytest.approx(done[name])


def test_training_has_the_same_bits_with_and_without(exchange, tmp_path):
    off, on = settings("bayes_admm", *MODELS["mlp"]), settings("bayes_admm", *MODELS["mlp"], ON)
    one, other = (run(w, str(tmp_path / name)) for name, w in (("off", off), ("on", on)))
    assert one["checksum"] == other["checksum"]
    assert not (tmp_path / "off" / FILE).exists()
    keys = set(read_metrics(tmp_path / "off" / "metrics.jsonl")[0])
    assert not any(key.startswith("clients_") for key in keys)


def lines(folder: Path) -> list[str]:
    return (folder / FILE).read_text().splitlines()


@pytest.mark.parametrize("method", ["fedavg", "bayes_admm", "ditto"])
def test_the_same_bits_on_any_number_of_ranks(worlds, tmp_path, method):
    config = configuration.load(None, words(method))
    for ranks in (1, 2, 4):
        worlds(ranks).run(run, config, fresh(tmp_path, f"{ranks}"))
    assert lines(tmp_path / "1") == lines(tmp_path / "2") == lines(tmp_path / "4")
    assert len(lines(tmp_path / "1")) == 2


def test_the_same_bits_after_a_stop_on_other_ranks(worlds, tmp_path):
    config = configuration.load(
        None, words("bayes_admm", "federation.rounds=4", "checkpoint.every=2", "evaluation.every=1")
    )
    worlds(1).run(run, config, fresh(tmp_path, "whole"))
    assert worlds(3).run(run, config, fresh(tmp_path, "parts"), False, 3) == [None] * 3
    assert len(lines(tmp_path / "parts")) == 3
    worlds(2).run(run, config, str(tmp_path / "parts"), True)
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")


def test_losses_before_and_after_are_those_of_the_first_and_the_last_batch(exchange, tmp_path):
    """With the whole of a client as one batch, the first is the loss where the round begins: the server's."""
    more = ["local.batch_size=100000", "local.epochs=2", "federation.participation=0.5"]
    run(words("fedavg", *more), str(tmp_path / "run"))
    records = read_metrics(tmp_path / "run" / "metrics.jsonl")
    told = fedddp.load(tmp_path / "run")
    frame = told.client_metrics
    for record in records:
        rows = frame[frame["round"] == record["round"]].reset_index()
        took = rows["loss_before"].notna()
        assert int(took.sum()) == record["active"] == int(rows["loss_after"].notna().sum())
        assert (rows["loss_after"] < rows["loss_before"])[took].all()
        both = (rows["loss_before"] + rows["loss_after"])[took] / 2  # two epochs are two batches
        sizes = told.clients["examples"][took]
        assert float((both * sizes).sum() / sizes.sum()) == pytest.approx(record["train_loss"], rel=1e-6)


def test_python_and_tensorboard_show_it(exchange, tmp_path):
    run(words("fedavg", "evaluation.histograms=1"), str(tmp_path / "run"))
    clients = fedddp.load(tmp_path / "run").clients
    assert {"client", "examples", "test_examples", "accuracy", "nll", "ece", "unseen"} <= set(clients)
    assert clients["unseen"].tolist() == [False] * (len(clients) - 1) + [True]
    assert np.isnan(clients["loss_before"].iloc[-1])
    tags = EventAccumulator(str(tmp_path / "run")).Reload().Tags()
    assert {"5_clients/accuracy", "5_clients/ece"} <= set(tags["histograms"])
    assert "clients" in tags["images"]
    assert {"5_clients/clients_accuracy_worst_tenth", "5_clients/unseen_accuracy_mean"} <= set(tags["scalars"])


def test_a_client_worse_off_than_alone_is_counted(exchange, tmp_path):
    run(words("local"), str(tmp_path / "alone"))
    done = run(words("fedavg", f"evaluation.alone={tmp_path / 'alone'}"), str(tmp_path / "run"))
    mine, other = (read_tables(tmp_path / name)[2].columns["accuracy"][:-1] for name in ("run", "alone"))
    there = mine.isfinite() & other.isfinite()
    assert done["worse_than_alone"] == pytest.approx(float((mine < other)[there].double().mean()))
    with pytest.raises(ValueError, match="hold other test examples"):
        run(words("fedavg", f"evaluation.alone={tmp_path / 'alone'}", "split.seed=9"), str(tmp_path / "other"))
    with pytest.raises(ValueError, match=r"no client_metrics\.jsonl there"):
        run(words("fedavg", f"evaluation.alone={tmp_path}"), str(tmp_path / "other"))


def test_summaries():
    values = torch.tensor([0.5, torch.nan, *[k / 20 for k in range(1, 20)]], dtype=torch.float64)
    found = dict(summary("accuracy", values))
    assert found["median"] == 0.5
    assert found["worst_tenth"] == pytest.approx((0.05 + 0.1) / 2)
    assert dict(summary("nll", values))["worst_tenth"] == pytest.approx((0.95 + 0.9) / 2)
    assert dict(summary("accuracy", values[1:2])) == {}


def test_what_is_written_is_read_and_is_plain_json():
    table = Table({"test_examples": torch.tensor([3.0, 0.0]), "nll": torch.tensor([0.1, torch.nan])}, "ab", 1)
    text = json.dumps(table.record(7), allow_nan=False)
    again = Table.of(json.loads(text))
    assert again.record(7) == table.record(7)
    assert again.columns["nll"][1].isnan()


def test_clients_given_in_python_may_bring_test_examples_of_their_own(tmp_path):
    generator = torch.Generator().manual_seed(0)

    def some(count):
        return torch.randn(count, 3, generator=generator), torch.randint(2, (count,), generator=generator)

    clients, test = {"rome": some(20), "oslo": some(30)}, {"oslo": some(7), "rome": some(5)}
    net = torch.nn.Linear(3, 2)
    options = {"model": net, "clients": clients, "rounds": 1, "settings": {"evaluation.clients": "server"}}
    frame = fedddp.run(**options, test=test, folder=tmp_path / "run", quiet=True).clients
    assert dict(zip(frame["client"], frame["test_examples"], strict=True)) == {"rome": 5, "oslo": 7}
    with pytest.raises(ValueError, match="test: 'bonn' is none of the clients"):
        fedddp.run(**options, test={"bonn": some(3)}, folder=tmp_path / "other")
