"""Noise keeps the engine's promise: the same bits on any number of ranks and after a stop; and a budget ends a run."""

import json
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

import fedddp
from fedddp import reports
from fedddp.config import loading as configuration
from fedddp.records.records import read_metrics
from fedddp.rounds import accounting
from fedddp.runs import members
from fedddp.runs.job import Job
from tests.small import METHODS, MODELS, fresh, run, settings

pytestmark = pytest.mark.skipif(bool(accounting.available()), reason=accounting.available())
CLIENT = ["privacy.level=client", "privacy.clip.all=1", "privacy.noise=1", "privacy.delta=0.01"]
EXAMPLE = ["privacy.level=example", "privacy.clip.gradient=1", "privacy.noise=1"]
PART = [word.replace("client", "part") for word in CLIENT]
POISSON = "privacy.sampling=poisson"
CASES = {
    "clients": ("fedavg", CLIENT),
    "some clients, a clip that adapts": (
        "fedadam",
        [*CLIENT, POISSON, "federation.participation=0.8", "privacy.quantile=0.5"],
    ),
    "clients, in shares": ("fedavg", [*CLIENT, "exchange.secure=rank", "exchange.range.all=1"]),
    "sites": ("pvi", [*CLIENT, "federation.participation=0.6"]),
    "sites of virtual clients": ("bayes_admm", [*PART, "split.virtual=2"]),
    "sites of averaged parts": ("pvi", [*PART, "federation.parts=2", "local.keep=false"]),
    "sites in shares": ("bayes_admm", [*CLIENT, "exchange.secure=client", "exchange.range.all=1"]),
    "examples": ("fedavg", EXAMPLE),
    "examples by chance": ("bayes_admm", [*EXAMPLE, POISSON, "federation.participation=0.6"]),
}


def load(case, *more):
    method, words = CASES[case]
    model = "conv" if case == "examples" else "mlp"
    return configuration.load(None, settings(method, *MODELS[model], *words, *more))


@pytest.mark.parametrize("case", CASES)
def test_the_same_bits_on_any_number_of_ranks_and_after_a_stop(worlds, tmp_path, case):
    config = load(case, "checkpoint.every=1")
    whole = worlds(1).run(run, config, fresh(tmp_path, "whole"))[0]
    assert worlds(4).run(run, config, fresh(tmp_path, "four"))[0]["checksum"] == whole["checksum"]
    folder = fresh(tmp_path, "parts")
    assert worlds(3).run(run, config, folder, False, 2) == [None] * 3
    resumed = worlds(2).run(run, config, folder, True)[0]
    assert resumed["checksum"] == whole["checksum"]
    assert resumed["epsilon"] == whole["epsilon"] > 0  # a round that is repeated is the same release
    for record in read_metrics(Path(folder) / "metrics.jsonl"):
        assert record["train_loss"] is None
        assert record["epsilon"] > 0


def test_the_systems_noise_does_not_repeat_and_a_repeated_round_is_paid_for(exchange, tmp_path, capsys):
    config = load("clients", "privacy.randomness=system", "checkpoint.every=1")
    aloud = Job(config, Path(fresh(tmp_path, "aloud")), exchange, torch.device("cpu")).run(False)
    assert "no bits will repeat" in capsys.readouterr().err
    assert run(config, fresh(tmp_path, "again"))["checksum"] != aloud["checksum"]
    folder = fresh(tmp_path, "stopped")
    assert run(config, folder, False, 2) is None  # two rounds, of which the checkpoint has one
    resumed = run(config, folder, True)
    assert resumed["privacy"]["rounds"] == 4
    Path(folder, "privacy.json").unlink()
    with pytest.raises(RuntimeError, match=r"privacy.json: is missing, and with it what was spent"):
        run(config, folder, True)


def test_a_run_ends_before_its_budget_is_over(exchange, tmp_path):
    first = run(load("clients", "federation.rounds=1"), fresh(tmp_path, "one"))["epsilon"]
    config = load("clients", f"privacy.epsilon={2.1 * first}", "federation.rounds=6")
    folder = fresh(tmp_path, "run")
    ended = run(config, folder)
    assert 0 < ended["rounds"] < 6
    assert ended["epsilon"] <= 2.1 * first
    assert json.loads(Path(folder, "privacy.json").read_text())["rounds"] == ended["rounds"]
    again = run(config, folder, True)
    assert (again["checksum"], again["epsilon"]) == (ended["checksum"], ended["epsilon"])


def test_what_is_spent_is_told_everywhere(exchange, tmp_path, monkeypatch):
    config = load("examples by chance")
    folder = Path(fresh(tmp_path, "run"))
    ended = run(config, str(folder))
    assert ended["privacy"] == {
        "level": "example",
        "delta": 1e-5,
        "noise": 1.0,
        "rounds": 3,
        "neighbours": "examples: one more or less",
        "sampling": "poisson",
        "accountant": "rdp",
        "randomness": "seed",
    }
    spent = [record["epsilon"] for record in read_metrics(folder / "metrics.jsonl")]
    assert sorted(set(spent)) == spent
    assert spent[-1] == ended["epsilon"]
    board = EventAccumulator(str(folder))
    board.Reload()
    (tag,) = [tag for tag in board.Tags()["scalars"] if tag.split("/")[-1] == "epsilon"]
    assert [event.value for event in board.Scalars(tag)] == pytest.approx(spent)
    for kind in ("table", "html"):
        assert "epsilon" in reports.written(reports.make([folder]), kind)
    (row,) = fedddp.report(folder)["epsilon"]
    assert row == pytest.approx(sum(spent[-3:]) / 3)


def test_a_budget_gives_the_noise(exchange, tmp_path):
    words = [word for word in EXAMPLE if "noise" not in word]
    ended = run(settings("fedavg", *MODELS["mlp"], *words, POISSON, "privacy.epsilon=3"), fresh(tmp_path, "run"))
    assert 2.9 < ended["epsilon"] <= 3
    assert ended["rounds"] == 3


@pytest.mark.parametrize("words", [["federation.parts=2"], ["split.virtual=2"]], ids=["parts", "virtual"])
def test_private_steps_on_parts_are_accounted_for_by_their_sizes(exchange, tmp_path, words):
    """A batch is a larger share of a part than of all, and each example has more steps."""
    config = configuration.load(None, settings("bayes_admm", *MODELS["mlp"], *EXAMPLE, POISSON, *words))
    folder = Path(fresh(tmp_path, "run"))
    spent = run(config, str(folder))["epsilon"]
    clients = json.loads((folder / "clients.json").read_text())
    sizes = (
        clients["examples"]
        if "virtual" in words[0]
        else [n // 2 + odd for n in clients["examples"] for odd in (0, n % 2)]
    )
    epochs, batch = config.local.passes()
    made = accounting.of_examples("poisson", sizes, epochs, batch, config.local.gradients(), 1e-5, "rdp")
    assert spent == made.epsilon(1.0, config.federation.rounds)
    assert len(clients["examples"]) == (14 if "virtual" in words[0] else 7)


def test_a_client_is_not_taken_out_of_a_noisy_sum(exchange, tmp_path):
    folder = Path(fresh(tmp_path, "run"))
    config = load("sites", "checkpoint.keep_clients=true")
    run(config, str(folder))
    with pytest.raises(ValueError, match=r"would tell exactly what the client has added"):
        members.forget(folder, members.configuration(folder), "3", 1, tmp_path / "out")


PRIVATE = [
    "bayes_admm",
    "bregman_admm",
    "centralized",
    "fedadagrad",
    "fedadam",
    "fedadmm",
    "fedavg",
    "fedavgm",
    "feddyn",
]
PRIVATE += ["federated_admm", "fedgvi", "fedlap", "fedprox", "fedyogi", "pvi"]


@pytest.mark.parametrize("method", PRIVATE)
def test_who_says_that_its_clients_only_run_their_solver_looks_at_nothing_else(exchange, tmp_path, method):
    words = settings(method, *MODELS["mlp"], *EXAMPLE, "federation.rounds=2")
    assert run(words, fresh(tmp_path, method))["epsilon"] > 0


@pytest.mark.parametrize("method", sorted({*METHODS} - {*PRIVATE}))
def test_another_method_is_refused_with_the_reason(exchange, tmp_path, method):
    words = settings(method, *MODELS["mlp"], *EXAMPLE)
    with pytest.raises(ValueError, match=r"not for (method|local)="):
        run(words, fresh(tmp_path, method))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([*EXAMPLE, "federation.streams=common"], "cannot be had with federation.streams"),
        ([*EXAMPLE, "federation.autocast=bf16"], "cannot be had with federation.autocast"),
        ([*CLIENT, "exchange.compress=bf16"], "goes with exchange.compress=none"),
        ([*CLIENT, "federation.participation=0.5", "privacy.accountant=pld"], "cannot account for a fixed number"),
        ([*CLIENT, POISSON, "federation.participation=0.2"], "no client at all is drawn"),
        ([*CLIENT, "split.virtual=2"], "would protect a part of a client only; use privacy.level=part"),
        (PART, "clients have no parts; set split.virtual"),
        ([*PART, "split.virtual=2", "federation.participation=0.5"], "with federation.participation=1 only"),
        ([*PART, "federation.parts=2", "privacy.quantile=0.5"], "the clip stays; use privacy.quantile=0"),
        (
            [*PART, "federation.parts=2", "local.keep=true", "local.momentum=0.9"],
            "remembers of all parts is not private",
        ),
    ],
)
def test_what_would_not_be_as_private_as_said_is_refused(exchange, tmp_path, words, said):
    with pytest.raises(ValueError, match=said):
        run(settings("fedavg", *MODELS["mlp"], *words), fresh(tmp_path, "run"))
