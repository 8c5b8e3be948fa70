"""The table's numbers, computed a second time from the runs' own files."""

import csv
import io
import json
from statistics import mean, stdev

import pytest
import torch

from fedddp import reports
from fedddp.config import loading as configuration
from fedddp.reports.table import size
from fedddp.runs.job import Job
from tests.reports.conftest import PUBLISHED, ROUNDS, records, write_run

SLOW, FAST, PROX = (0, 1, 2), (3, 4, 5), (6, 7, 8)  # the runs of each row


def last_three(folder, metric, at=ROUNDS):
    return mean(r[metric] for r in records(folder) if at - 3 < r["round"] <= at)


def by_label(made):
    return {(r["method"], float(r["local.lr"])): r for r in made.table.records()}


def test_mean_and_deviation_over_seeds_of_the_last_three_rounds(sweep):
    rows = by_label(reports.make([sweep], at=[4]))
    for label, runs in {("fedavg", 0.02): SLOW, ("fedavg", 0.2): FAST, ("fedprox", 0.1): PROX}.items():
        assert rows[label]["seeds"] == 3
        for metric in ("accuracy", "nll", "ece"):
            for name, at in ((metric, ROUNDS), (f"{metric}@4", 4)):
                numbers = [last_three(sweep / str(run), metric, at) for run in runs]
                assert rows[label][name] == pytest.approx(mean(numbers), rel=1e-12)
                assert rows[label][f"{name}_std"] == pytest.approx(stdev(numbers), rel=1e-9)


def test_the_end_is_what_each_summary_says(sweep):
    for run in reports.make([sweep]).rows[0].runs:
        told = json.loads((run.folder / "summary.json").read_text())["last_3_rounds"]
        assert reports.last_three(run, "accuracy") == pytest.approx(told["accuracy"], rel=1e-12)


def test_cost(sweep):
    rows = by_label(reports.make([sweep]))
    fast = [records(sweep / str(run)) for run in FAST]
    assert rows["fedavg", 0.2]["seconds"] == pytest.approx(mean(sum(r["seconds"] for r in run) for run in fast))
    for way in ("up", "down"):
        total = mean(sum(r["active"] * r[f"bytes_{way}"] for r in run) for run in fast)
        assert rows["fedavg", 0.2][f"bytes {way}"] == total > 0
    assert rows["fedavg", 0.2]["rounds"] == ROUNDS


def test_rounds_to_a_target(sweep):
    accuracies = {run: [r["accuracy"] for r in records(sweep / str(run))] for run in FAST}
    target = sorted(max(a) for a in accuracies.values())[1]  # two of the three runs reach it
    first = [
        next(i for i, a in enumerate(rounds, 1) if a >= target)
        for rounds in accuracies.values()
        if max(rounds) >= target
    ]
    made = reports.make([sweep], target=target)
    assert by_label(made)["fedavg", 0.2][f"rounds to {target:g}"] == mean(first)
    assert "(2 of 3)" in made.table.text()
    assert not any(c.name.startswith("rounds to") for c in reports.make([sweep], target=1.1).table.columns)


def test_published_numbers_and_the_difference(sweep):
    rows = by_label(reports.make([sweep], at=[3]))
    told = PUBLISHED["fedavg"]
    for lr in (0.02, 0.2):
        row = rows["fedavg", lr]
        for name, number in (
            ("accuracy@3", told["accuracy"]["3"]),
            ("accuracy", told["accuracy"]["5"]),
            ("nll", told["nll"]["5"]),
        ):
            assert row[f"{name} published"] == number
            assert row[f"{name} difference"] == row[name] - number
        assert "nll@3 published" not in row
    assert rows["fedprox", 0.1]["accuracy published"] is None
    assert rows["fedprox", 0.1]["accuracy difference"] is None


def test_a_variant_has_published_numbers_of_its_own(tmp_path):
    told = {"fedbens": {"accuracy": {"3": 0.6}}, "fedbens_last": {"accuracy": {"3": 0.5}}}
    for structure in ("kron", "last"):
        method = {"name": "fedbens", "structure": structure}
        write_run(tmp_path / structure, {"method": method}, {"accuracy": [0.6] * 3}, told)
    rows = {r["method.structure"]: r for r in reports.make([tmp_path]).table.records()}
    assert rows["kron"]["accuracy published"] == 0.6
    assert rows["last"]["accuracy published"] == 0.5
    assert rows["last"]["accuracy difference"] == pytest.approx(0.1)


def test_a_published_metric_is_shown_even_if_it_is_not_a_usual_one(tmp_path):
    told = {"fedavg": {"recall_at_5": {"3": 0.7}}}
    write_run(tmp_path / "a", {}, {"accuracy": [0.5] * 3, "recall_at_5": [0.8] * 3}, told)
    assert reports.make([tmp_path]).table.records()[0]["recall_at_5 difference"] == pytest.approx(0.1)


def test_a_round_that_a_run_never_reached_has_no_number(sweep):
    made = reports.make([sweep], at=[3, 400])
    assert not any("400" in column.name for column in made.table.columns)


def test_the_end_is_not_shown_twice(sweep):
    names = [column.name for column in reports.make([sweep], at=[3, ROUNDS], metrics=["nll"]).table.columns]
    assert f"nll@{ROUNDS}" in names
    assert "nll" not in names


def test_csv_keeps_every_digit_and_md_and_text_say_the_same(sweep):
    table = reports.make([sweep], at=[3]).table
    parsed = list(csv.DictReader(io.StringIO(table.csv())))
    for row, record in zip(parsed, table.records(), strict=True):
        for name, value in record.items():
            assert row[name] == ("" if value is None else str(value))
    head, rule, *lines = table.md().splitlines()
    assert head.count("|") == rule.count("|") == len(table.columns) + 1
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert cells == table.cells()
    assert all(cell in line for line, row in zip(table.text().splitlines()[1:], cells, strict=True) for cell in row)


def test_unfinished_runs_are_left_out_and_counted(tmp_path):
    write_run(tmp_path / "a", {"seed": 0}, {"accuracy": [0.5] * 3})
    (write_run(tmp_path / "b", {"seed": 1}, {"accuracy": [0.1]}) / "summary.json").unlink()
    made = reports.make([tmp_path])
    assert made.table.records()[0]["accuracy"] == 0.5
    assert made.table.notes == ["1 of 2 runs left out: not done yet"]
    (tmp_path / "a" / "summary.json").unlink()
    with pytest.raises(ValueError, match="none of 2 runs is done"):
        reports.make([tmp_path])


def test_an_unknown_metric_names_the_known_ones(sweep):
    with pytest.raises(ValueError, match=r"--metric acuracy: no run recorded it; choose from accuracy, active"):
        reports.make([sweep], metrics=["acuracy"])


@pytest.mark.parametrize(("count", "text"), [(0, "0 B"), (999, "999 B"), (1924000, "1.92 MB"), (5e14, "500 TB")])
def test_sizes(count, text):
    assert size(count) == text


def test_a_run_that_was_not_finite_is_not_averaged_away(tmp_path):
    for seed, end in enumerate((1.0, float("nan"), 3.0)):
        write_run(tmp_path / str(seed), {"seed": seed}, {"accuracy": [0.5] * 4, "nll": [2.0, 2.0, 2.0, end]})
    table = reports.make([tmp_path]).table
    row = table.records()[0]
    assert row["nll"] == pytest.approx((5 / 3 + 7 / 3) / 2)
    assert "(2 of 3)" in table.text()


def test_at_a_round_means_that_round_and_the_two_before(exchange, tmp_path):
    """Evaluated rarely, a run still has the three rounds of every number that was asked for beforehand."""
    words = ["method=fedavg", "data.test_fraction=0.8", "local.epochs=1", "federation.rounds=14", "evaluation.every=5"]
    config = configuration.load(None, [*words, "evaluation.at=[9]", "evaluation.histograms=0"])
    job = Job(config, tmp_path / "run", exchange, torch.device("cpu"), quiet=True)
    summary = job.run(False)
    accuracy = {r["round"]: r["accuracy"] for r in records(tmp_path / "run") if "accuracy" in r}
    assert sorted(accuracy) == [5, 7, 8, 9, 10, 12, 13, 14]
    made = reports.make([tmp_path], at=[9], metrics=["accuracy"])
    (row,) = made.table.records()
    assert row["accuracy@9"] == pytest.approx(mean(accuracy[n] for n in (7, 8, 9)), rel=1e-12)
    assert row["accuracy"] == pytest.approx(mean(accuracy[n] for n in (12, 13, 14)), rel=1e-12)
    assert summary["last_3_rounds"]["accuracy"] == pytest.approx(row["accuracy"], rel=1e-12)
    assert made.table.notes == []
    assert reports.make([tmp_path], at=[10], metrics=["accuracy"]).table.notes == [], "8, 9 and 10 are there, too"
    (note,) = reports.make([tmp_path], at=[12], metrics=["accuracy"]).table.notes
    assert "mean of rounds 9, 10, 12, not of 10, 11, 12" in note


def test_a_mean_over_other_rounds_says_which(tmp_path):
    folder = write_run(tmp_path / "a", {}, {"accuracy": [0.1] * 25})
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    for line in lines:
        if line["round"] % 5:
            del line["accuracy"]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (note,) = reports.make([tmp_path], at=[25], metrics=["accuracy"]).table.notes
    assert note.startswith("accuracy@25 of fedavg: mean of rounds 15, 20, 25, not of 23, 24, 25")
    assert note.endswith("evaluation.at=[25] does")


def test_a_papers_own_way_to_read_a_run(sweep):
    """The best of three rounds; a target by a running mean; no number of rounds unless every run reaches it."""
    series = {run: [r["accuracy"] for r in records(sweep / str(run))] for run in FAST}
    found = by_label(reports.make([sweep], reading=reports.Reading(best_of_three=True)))["fedavg", 0.2]
    assert found["accuracy"] == pytest.approx(mean(max(values[-3:]) for values in series.values()), rel=1e-12)
    nll = [min(r["nll"] for r in records(sweep / str(run))[-3:]) for run in FAST]
    assert found["nll"] == pytest.approx(mean(nll), rel=1e-12)
    running = {run: [mean(values[i - 1 : i + 1]) for i in range(1, ROUNDS)] for run, values in series.items()}
    target = min(max(values) for values in running.values())  # all reach it
    first = [next(i for i, v in enumerate(values, 2) if v >= target - 1e-12) for values in running.values()]
    made = reports.make([sweep], target=target - 1e-12, reading=reports.Reading(window=2, every_run=True))
    assert by_label(made)["fedavg", 0.2][f"rounds to {target:g}"] == pytest.approx(mean(first))
    only_some = sorted(max(a) for a in series.values())[1]
    made = reports.make([sweep], target=only_some, reading=reports.Reading(every_run=True))
    assert by_label(made)["fedavg", 0.2].get(f"rounds to {only_some:g}") is None
