"""A run that is made longer, and a folder that a failed attempt left."""

import json
from pathlib import Path

import pytest
import torch

from fedddp.config import loading as configuration
from fedddp.rounds import checkpoint
from fedddp.runs.claim import default_folder
from tests import forked
from tests.small import MODELS, fresh, run, settings

MLP = MODELS["mlp"]


def words(method, rounds, *more):
    return configuration.load(None, settings(method, *MLP, *more, f"federation.rounds={rounds}"))


def rows(folder, rounds):
    """What every client remembers, and the server: all tensors of a checkpoint."""
    path = Path(folder) / "checkpoints" / f"round-{rounds:06d}"
    files = sorted(path.glob("*.safetensors")) or sorted(p for p in path.iterdir() if p.suffix != ".json")
    return {name: leaf for file in files for name, leaf in checkpoint.load_tensors(file).items()}


@pytest.mark.parametrize("method", ["fedavg", "feddyn", "bayes_admm"])
@pytest.mark.parametrize("ranks", [(1, 1), (2, 3)])
def test_more_rounds_are_those_of_a_longer_run(worlds, tmp_path, method, ranks):
    more = ["checkpoint.keep_clients=true", "federation.participation=0.6"]
    whole = worlds(1).run(run, words(method, 5, *more), fresh(tmp_path, "whole"))[0]
    folder = fresh(tmp_path, "parts")
    worlds(ranks[0]).run(run, words(method, 3, *more), folder)
    longer = worlds(ranks[1]).run(run, words(method, 5, *more), folder, True)[0]
    assert longer["checksum"] == whole["checksum"]
    assert longer["config_hash"] == whole["config_hash"]
    ours, theirs = rows(folder, 5), rows(tmp_path / "whole", 5)
    assert sorted(ours) == sorted(theirs)
    if ranks[1] == 1:  # then the rows lie in the same order
        assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    numbers = [json.loads(line)["round"] for line in (Path(folder) / "metrics.jsonl").read_text().splitlines()]
    assert numbers == [1, 2, 3, 4, 5]


def test_a_finished_run_whose_clients_remember_nothing_goes_on(worlds, tmp_path):
    whole = worlds(1).run(run, words("fedavg", 4), fresh(tmp_path, "whole"))[0]
    folder = fresh(tmp_path, "parts")
    worlds(1).run(run, words("fedavg", 2), folder)
    assert worlds(1).run(run, words("fedavg", 4), folder, True)[0]["checksum"] == whole["checksum"]


def test_a_stopped_run_goes_on_to_any_later_round(worlds, tmp_path):
    whole = worlds(1).run(run, words("feddyn", 4), fresh(tmp_path, "whole"))[0]
    folder = fresh(tmp_path, "parts")
    assert worlds(1).run(run, words("feddyn", 9, "checkpoint.every=1"), folder, False, 3) == [None]
    shorter = words("feddyn", 4)
    assert worlds(1).run(run, shorter, folder, True)[0]["checksum"] == whole["checksum"]


def content(folder):
    """Of all files but the lock, which says since when it is held."""
    return {path: path.read_bytes() for path in Path(folder).glob("[!.]*.*")}


REASONS = {
    "dropped": ("feddyn", [], 4, "what its clients remember was dropped then"),
    "schedule": ("fedavg", ["local.schedule=cosine"], 4, "a run of 4 is another one from the start"),
    "fewer": ("fedavg", [], 1, "has 2 rounds already, more than federation.rounds=1"),
}


@pytest.mark.parametrize("reason", REASONS)
def test_where_it_cannot_go_on_the_error_says_why_and_nothing_is_changed(worlds, tmp_path, reason):
    method, more, rounds, message = REASONS[reason]
    folder = fresh(tmp_path, "run")
    worlds(1).run(run, words(method, 2, *more), folder)
    before = content(folder)
    (_, error), *_ = worlds(1).try_run(run, words(method, rounds, *more), folder, True)
    assert message in error
    assert content(folder) == before
    assert worlds(1).run(run, words(method, 2, *more), folder, True)[0]["rounds"] == 2


def test_resume_finds_the_folder_without_the_number_of_rounds(tmp_path):
    quick = ["data.test_fraction=0.85", "local.epochs=1", "evaluation.histograms=0", "--ranks", 1]
    for rounds, extra in ((2, []), (4, ["--resume"])):
        result = forked.fedddp("run", f"federation.rounds={rounds}", *quick, *extra, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
    (folder,) = (tmp_path / "runs" / "digits").iterdir()
    assert json.loads((folder / "summary.json").read_text())["rounds"] == 4
    asked = forked.fedddp("run", "federation.rounds=6", *quick, "--out", folder, cwd=tmp_path)
    assert "holds this run with federation.rounds=4: add --resume to go on with it to 6" in asked.stderr
    config = configuration.load(None, ["federation.rounds=6", *quick[:3]])
    assert default_folder(tmp_path / "runs" / "digits", config, resume=True) == folder
    assert default_folder(tmp_path / "runs" / "digits", config, resume=False).name == config.folder_name


def test_a_run_that_failed_before_its_first_round_does_not_block_its_folder(tmp_path):
    quick = ["federation.rounds=1", "data.test_fraction=0.85", "local.epochs=1", "evaluation.histograms=0"]
    bad = forked.fedddp("run", *quick, "split=iid", "split.clients=5000", "--ranks", 1, "--out", "run", cwd=tmp_path)
    assert bad.returncode == 2
    assert (tmp_path / "run" / "config.yaml").exists()
    good = forked.fedddp("run", *quick, "split=iid", "split.clients=5", "--ranks", 1, "--out", "run", cwd=tmp_path)
    assert good.returncode == 0, good.stderr
    assert not (tmp_path / "run" / "traceback.txt").exists()
    again = forked.fedddp("run", *quick, "split=iid", "split.clients=6", "--ranks", 1, "--out", "run", cwd=tmp_path)
    assert "holds a run of another configuration" in again.stderr


def test_a_diverging_run_says_so_once(tmp_path):
    words = ["model=logistic", "local.lr=3000", "federation.rounds=4", "local.epochs=2", "evaluation.histograms=0"]
    result = forked.fedddp("run", *words, "--ranks", 1, "--out", "run", cwd=tmp_path)
    assert result.stderr.count("the run diverges (a smaller local.lr may help)") == 1, result.stderr


def test_numbers_beyond_tensorboards_bins_do_not_end_a_run(tmp_path):
    words = ["local.lr=1e10", "federation.on_bad_client=skip", "federation.rounds=1", "model=logistic"]
    result = forked.fedddp("run", *words, "evaluation.histograms=1", "--ranks", 1, "--out", "run", cwd=tmp_path)
    assert "histogram" not in result.stderr, result.stderr
