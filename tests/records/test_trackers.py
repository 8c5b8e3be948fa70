"""Trackers are told what metrics.jsonl holds; one that fails leaves the run alone. W&B and MLflow in offline mode."""

import json
from pathlib import Path

import pytest

from fedddp.config import loading as configuration
from fedddp.records.trackers import Tracker, find
from tests.small import run, settings

TOLD: list = []


class Own(Tracker):
    def begin(self, about):
        TOLD.append(("begin", about))

    def round(self, step, numbers):
        TOLD.append((step, dict(numbers)))

    def end(self, failed):
        TOLD.append(("end", failed))


class Broken(Own):
    def round(self, step, numbers):
        raise ConnectionError("no network")


def words(name, *more):
    return settings("fedavg", "evaluation.every=1", f"evaluation.trackers=[{name}]", *more)


def records(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_an_own_tracker_is_told_everything_also_after_a_stop(exchange, tmp_path):
    TOLD.clear()
    own = words(f"{__name__}:Own", "checkpoint.every=1")
    assert run(own, str(tmp_path / "runs" / "a"), kill_after=2) is None
    assert TOLD[-1] == ("end", True)
    assert run(own, str(tmp_path / "runs" / "a"), resume=True)
    begun = [about for what, about in TOLD if what == "begin"]
    assert [about.done for about in begun] == [0, 1]  # the kill came before the second checkpoint
    assert begun[0].project == "runs"
    assert begun[0].settings["method.name"] == "fedavg"
    told = {step: numbers for step, numbers in TOLD if isinstance(step, int)}
    for record in records(tmp_path / "runs" / "a"):
        assert told[record["round"]]["1_quality/accuracy"] == record["accuracy"]
    assert TOLD[-1] == ("end", False)


def test_a_broken_one_is_left_out_and_bits_are_the_same(exchange, tmp_path):
    TOLD.clear()
    without = run(settings("fedavg", "evaluation.every=1"), str(tmp_path / "without"))
    broken = run(words(f"{__name__}:Broken"), str(tmp_path / "broken"))
    assert without["checksum"] == broken["checksum"]
    assert without["config_hash"] == broken["config_hash"]
    assert [what for what, _ in TOLD] == ["begin"]


def test_an_unknown_one_is_a_mistake():
    with pytest.raises(ValueError, match=r"evaluation.trackers=wandbb: unknown; did you mean wandb\?"):
        find("wandbb")
    with pytest.raises(ValueError, match="must derive from"):
        find("json:JSONDecoder")
    with pytest.raises(ValueError, match="must be wandb or mlflow, or package"):
        configuration.load(None, ["evaluation.trackers=[wandbb]"])


def test_mlflow_in_a_folder(exchange, tmp_path, monkeypatch):
    pytest.importorskip("mlflow", reason="mlflow-skinny is not installed")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", (tmp_path / "mlruns").as_uri())
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    assert run(words("mlflow"), str(tmp_path / "runs" / "a"))
    from mlflow.tracking import MlflowClient

    client = MlflowClient()
    (found,) = client.search_runs([client.get_experiment_by_name("runs").experiment_id])
    assert found.info.status == "FINISHED"
    history = client.get_metric_history(found.info.run_id, "1_quality/accuracy")
    assert [one.value for one in history] == [record["accuracy"] for record in records(tmp_path / "runs" / "a")]


def test_wandb_offline(exchange, tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is not installed")
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert run(words("wandb"), str(tmp_path / "runs" / "a"))
    wandb.teardown()  # its own process writes the file, and is done only then
    (file,) = (tmp_path / "runs" / "a").glob("wandb/offline-run-*/run-*.wandb")
    assert b"1_quality/accuracy" in file.read_bytes()
