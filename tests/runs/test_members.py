"""Who leaves is as if never there, exactly where sites say so; who comes begins empty; both go on anywhere."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import fedddp
from fedddp.config import loading as configuration
from fedddp.records.records import read_metrics
from fedddp.rounds import checkpoint
from fedddp.runs import members
from tests import toy
from tests.small import METHODS, MODELS, fresh, run, settings

NAMES = ("rome", "oslo", "lima", "bonn", "kiel")
FULL = {"name": "pvi", "covariance": "full", "damping": 1.0}
ADMM = {"name": "bayes_admm", "covariance": "full", "damping": 1.0, "temperature": 1.0}
CHOICES = {"federation.dtype": "float64", "checkpoint.keep_clients": True, "evaluation.histograms": 0}


def options(method, names=NAMES, local="exact", **more):
    """A run of linear regressions, whose posteriors are known."""
    task = toy.task()
    index = {name: task.shards.of_client(client) for client, name in enumerate(NAMES)}
    data = task.data.train
    return {
        "model": nn.Linear(toy.D, 1, bias=False, dtype=torch.float64),
        "clients": {name: (data.inputs[index[name]], data.targets[index[name], None]) for name in names},
        "test": (data.inputs, data.targets[:, None]),
        "method": method,
        "local": local,
        "settings": {**CHOICES, **more},
    }


def do(folder, method, rounds, names=NAMES, **more):
    return fedddp.run(**options(method, names, **more), rounds=rounds, folder=folder, quiet=True)


def posterior(run):
    return run.posterior.mean, run.posterior.precision


@pytest.mark.parametrize(
    "method", [FULL, {**FULL, "name": "fedlap_cov"}, {**ADMM, "rho": 0.2}], ids=lambda m: m["name"]
)
def test_without_a_client_the_posterior_is_that_of_never_having_had_it(tmp_path, method):
    names = [name for name in NAMES if name != "lima"]
    do(tmp_path / "all", method, 3)
    left = fedddp.forget(tmp_path / "all", "lima", out=tmp_path / "left", **options(method))
    other = {**method, "rho": 0.25} if "rho" in method else method  # 1/K, where one round is exact
    never = do(tmp_path / "never", other, 3, names)
    for one, two in zip(posterior(left), posterior(never), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)
    assert list(left.clients["client"]) == names
    assert left.summary["rounds"] == 3
    was = fedddp.load(tmp_path / "all", model=options(method)["model"])
    assert (was.posterior.mean - left.posterior.mean).norm() > 0.01
    assert left.metrics["rmse"].iloc[-1] != was.metrics["rmse"].iloc[-1]  # the last record is of what is there now


def test_who_comes_begins_empty_and_the_posterior_is_that_of_all(tmp_path):
    names = [name for name in NAMES if name != "lima"]
    do(tmp_path / "four", FULL, 2, names)
    joined = fedddp.join(tmp_path / "four", "lima", rounds=1, out=tmp_path / "five", **options(FULL))
    for one, two in zip(posterior(joined), posterior(do(tmp_path / "all", FULL, 2)), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-10, atol=1e-12)
    assert list(joined.clients["client"]) == list(NAMES)
    assert list(joined.metrics["active"]) == [4, 4, 5]


def words(method, *more):
    return settings(method, *MODELS["mlp"], "checkpoint.keep_clients=true", *more)


def test_leaving_and_joining_go_on_with_the_same_bits_on_any_ranks(worlds, tmp_path):
    folder = tmp_path / "run"
    given = words("bayes_admm", "federation.without=[5]", "federation.participation=0.7")
    config = configuration.load(None, given)
    worlds(2).run(run, config, str(folder))
    for change, client in ((members.forget, "2"), (members.join, "5")):
        sums = set()
        for ranks in (1, 3):
            out = tmp_path / f"{change.__name__}{ranks}"
            after = change(folder, members.configuration(folder), client, 2, out)
            sums.add(worlds(ranks).run(run, after, str(out), True)[0]["checksum"])
            assert [record["round"] for record in read_metrics(out / "metrics.jsonl")] == [1, 2, 3, 4, 5]
        out = tmp_path / f"{change.__name__} in parts"  # and stopped after a round: the rest on other ranks
        after = change(folder, members.configuration(folder), client, 2, out)
        after = replace(after, checkpoint=replace(after.checkpoint, every=1))
        assert worlds(4).run(run, after, str(out), True, 5) == [None] * 4
        sums.add(worlds(2).run(run, after, str(out), True)[0]["checksum"])
        assert len(sums) == 1
    assert list(fedddp.load(tmp_path / "forget1").clients["client"]) == ["0", "1", "3", "4", "6"]
    assert list(fedddp.load(tmp_path / "join1").clients["client"]) == [*range(7)]
    command(["forget", str(tmp_path / "forget1"), "--client", "6", "--out", str(tmp_path / "twice"), "--ranks", "2"])
    assert fedddp.load(tmp_path / "twice").config["federation"]["without"] == [2, 5, 6]
    assert fedddp.load(tmp_path / "twice").finished


def command(given, code=0):
    done = subprocess.run([sys.executable, "-m", "fedddp", *given], capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return done.stderr


def test_the_modes_of_a_client_that_left_are_in_no_posterior(exchange, tmp_path):
    """fedbens: one round of descents without the client, in which nobody trains, is the run that never had it."""
    more = ["local.batch_size=4096", "federation.rounds=1", "federation.dtype=float64", "method.members=1"]
    run(words("fedbens", *more), fresh(tmp_path, "all"))
    left = fedddp.forget(tmp_path / "all", "4", rounds=1)
    run(words("fedbens", *more, "federation.without=[4]"), fresh(tmp_path, "never"))
    never = fedddp.load(tmp_path / "never")
    for one, two in zip(left.model.parameters(), never.model.parameters(), strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-9)


FORGET = {"pvi", "fedep", "fedlap", "fedlap_cov", "bayes_admm", "bregman_admm", "federated_admm", "fedadmm"}
FORGET |= {"fedgvi", "preconditioned_admm", "feddyn", "fedcurv", "fedbens"}


@pytest.mark.parametrize("method", sorted({*METHODS} - FORGET))
def test_a_method_that_cannot_forget_says_why(exchange, tmp_path, method):
    more = ["method.delta=100"] if method == "fedlap_func_cov" else []  # proper in its first round
    run(words(method, "federation.rounds=1", *more), fresh(tmp_path, "run"))
    with pytest.raises(ValueError, match="does not keep apart what each client has added"):
        fedddp.forget(tmp_path / "run", "0")


@pytest.mark.parametrize("method", sorted(FORGET))
def test_those_that_can_go_on_without(exchange, tmp_path, method):
    run(words(method), fresh(tmp_path, "run"))
    left = fedddp.forget(tmp_path / "run", "1", rounds=1)
    assert left.summary["clients"] == 6
    assert left.summary["rounds"] == 4


def test_layers_of_a_clients_own_leave_with_it(exchange, tmp_path):
    run(words("pvi", "method.personal=[3]"), fresh(tmp_path, "run"))
    left = fedddp.forget(tmp_path / "run", "1", rounds=1)
    assert (left.summary["clients"], left.summary["rounds"]) == (6, 4)


def test_averaged_statistics_cannot_be_taken_apart(exchange, tmp_path):
    """Of BatchNorm; those that stay with their clients leave with them."""
    more = [
        f"model={Path(__file__).parents[1] / 'modules.py'}:ConvBatchNorm",
        "model.buffers=average",
        "federation.rounds=1",
    ]
    run(settings("fedlap", *more, "data.test_fraction=0.9", "checkpoint.keep_clients=true"), fresh(tmp_path, "run"))
    with pytest.raises(ValueError, match="does not keep apart what each client has added"):
        fedddp.forget(tmp_path / "run", "1")


def test_what_cannot_be_done_says_what_can(exchange, tmp_path):
    given = [word for word in words("pvi") if "keep_clients" not in word]
    run(given, fresh(tmp_path, "dropped"))
    with pytest.raises(ValueError, match=r"checkpoint.keep_clients=true keeps it"):
        fedddp.forget(tmp_path / "dropped", "1")
    run(words("scaffold"), fresh(tmp_path, "run"))
    with pytest.raises(ValueError, match="has no client 'rome'"):
        fedddp.forget(tmp_path / "run", "rome")
    with pytest.raises(ValueError, match=r"none of the clients that are away, federation.without=\[\]"):
        fedddp.join(tmp_path / "run", "3")
    with pytest.raises(ValueError, match=r"federation.without=.*: must be some of the clients"):
        run(words("pvi", "federation.without=[7]"), fresh(tmp_path, "wrong"))
    run(words("scaffold", "federation.without=[1]"), fresh(tmp_path, "fewer"))
    with pytest.raises(ValueError, match="has a place for each client from the start"):
        fedddp.join(tmp_path / "fewer", "1")


def test_a_checkpoint_of_a_new_folder_is_whole(exchange, tmp_path):
    run(words("pvi"), fresh(tmp_path, "run"))
    fedddp.forget(tmp_path / "run", "0")
    folder = tmp_path / "run-without-0"
    newest = checkpoint.newest(Path(folder) / "checkpoints", pytest.fail)
    assert checkpoint.about(newest)["round"] == 3
    assert configuration.read(folder / "config.yaml")["federation"]["without"] == [0]
