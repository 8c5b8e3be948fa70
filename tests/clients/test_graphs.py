"""Local steps, recorded and replayed: here by operations written down, on a GPU as graphs (tests/cuda)."""

import traceback
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch.utils._python_dispatch import _disable_current_modes

from fedddp.bench.recorder import Recorder
from fedddp.checks import pretend, small
from fedddp.clients.cohort import Cohort
from fedddp.clients.graphs import Graphs
from fedddp.clients.oracle import Oracle
from fedddp.config.loading import Config
from fedddp.core import kernels
from fedddp.exchange.group import Exchange
from fedddp.rounds.federate import checksum
from fedddp.runs.build import make_federation, make_task
from tests import forked

MLP, CONV = small.MODELS["mlp"], small.MODELS["conv"]
PICTURES = ["data=fedddp.bench.servers:Noise", "data.side=8"]
LASTS_A_FIT = ("turned gradients",)  # a method's own function, of which nobody knows what it reads
CASES: dict[str, list[str]] = {
    "sgd": ["method=fedavg", *MLP],
    "sgd with momentum, clipped": ["method=fedavg", "local.momentum=0.9", "local.clip=0.5", "local.keep=true", *MLP],
    "sgd with a schedule": ["method=fedavg", "local.schedule=cosine", *MLP],
    "adam with a site": ["method=fedprox", "local=adam", *MLP],
    "ivon": ["method=bayes_admm", *MLP],
    "ivon, two samples": ["method=bayes_admm", "local.samples=2", "local.hess_approx=gradsq", *MLP],
    "iasg": ["method=fedpa", "local=iasg", "method.burn_in_rounds=0", *MLP],
    "laplace": ["method=pvi", "local=laplace", *MLP],
    "turned gradients": ["method=mime", *MLP],
    "sgd, convolutions": ["method=fedavg", *CONV],
    "ivon, convolutions": ["method=bayes_admm", *CONV],
    "convolutions by hand, with dropout": ["method=fedavg", "model.name=emnist_cnn"],
    "pictures cut anew": ["method=fedavg", *PICTURES, "data.augment=crops", *CONV],
    "convolutions one by one": ["method=fedavg", "federation.vectorise=false", *CONV],
}


DESCENTS: dict[str, list[str]] = {  # of servers, eight steps in a round
    "fedlap_func": ["method=fedlap_func", *MLP],
    "fedlap_func, convolutions": ["method=fedlap_func", "model.name=hwa_cnn"],
    "fedlap_func_cov": ["method=fedlap_func_cov", *MLP],
    "fedfisher, kfac": ["method=fedfisher", *MLP],
    "fedfisher, diag, looking": ["method=fedfisher", "method.fisher=diag", "data.validation=20", *MLP],
}
DOWN = 8


class Seen(NamedTuple):
    """What a case did: eagerly, and by replays."""

    plain: list[Any]  # after each round the server's checksum and the clients' losses
    replayed: list[Any]
    recorded: list[int]  # graphs, after each round
    replays: int
    shapes: list[int]  # different ones of each fit of the first round
    steps: int  # of all fits


def rounds(config: Config, device: torch.device, exchange: Exchange, recorder: Recorder | None) -> tuple[Any, Any, Any]:
    """Two rounds on the pretended device."""
    sums, recorded = [], []
    with pretend.Device():
        task = make_task(config, device)
        federation = make_federation(config, task, exchange)
        federation.graphs = None if recorder is None else Graphs(recorder)
        federation.task = replace(federation.task, record=recorder)
        server = federation.method.init_server(task)
        for number in range(2):
            server, report = federation.round(server, number)
            assert report.losses is not None
            sums.append((checksum(server), report.losses.tolist()))
            recorded.append(0 if recorder is None else recorder.recorded)
    return sums, recorded, [cohort.ids for cohort in report.cohorts]


def watch(words: list[str], device: torch.device, exchange: Exchange) -> Seen:
    recorder, config = Recorder(), small.load(words, "federation.rounds=2")
    plain, _, _ = rounds(config, device, exchange, None)
    replayed, recorded, cohorts = rounds(config, device, exchange, recorder)
    task = make_task(config, torch.device("cpu"))
    oracle = Oracle(task.module, task.layout, task.objective)
    plans = [Cohort(ids, 0, task, oracle)._schedule(*config.local.passes()) for ids in cohorts]
    shapes = [len({(rows, plan.short(t)) for t, rows in enumerate(plan.working)}) for plan in plans]
    return Seen(plain, replayed, recorded, recorder.replayed, shapes, 2 * sum(len(plan.table) for plan in plans))


def launch(name: str, *arguments: Any) -> None:
    """A fused kernel on the pretended device."""
    with _disable_current_modes():
        kernels.in_c(name, *(x.held if isinstance(x, pretend.Pretend) else x for x in arguments))


def watch_all(fused: bool, cases: dict[str, list[str]]) -> dict[str, Seen | str]:
    device, exchange = pretend.install(), Exchange.connect(torch.device("cpu"))
    if fused:
        kernels.BACKENDS[pretend.NAME] = launch
    found: dict[str, Seen | str] = {}
    for name, words in cases.items():
        try:
            found[name] = watch(words, device, exchange)
        except Exception:
            found[name] = traceback.format_exc()
    return found


def watch_descents() -> dict[str, Seen | str]:
    more = [f"method.steps={DOWN}", "method.validate_every=3"]
    cases = {name: [*words, *more[: 2 if "fisher" in name else 1]] for name, words in DESCENTS.items()}
    return watch_all(True, cases)


@pytest.fixture(scope="module")
def descents():
    return forked.call(watch_descents)


@pytest.mark.parametrize("case", DESCENTS)
def test_a_servers_descent_is_recorded_once_a_round_and_replayed(descents, case):
    found = descents[case]
    assert isinstance(found, Seen), found
    assert found.replayed == found.plain
    assert found.replays == found.steps + 2 * DOWN, "a step is one replay"


@pytest.fixture(scope="module", params=[True, False], ids=["fused", "plain"])
def seen(request):
    return forked.call(watch_all, request.param, CASES)


@pytest.mark.parametrize("case", CASES)
def test_what_is_replayed_is_what_is_computed(seen, case):
    found = seen[case]
    assert isinstance(found, Seen), found
    assert found.replayed == found.plain
    assert found.replays == found.steps, "a step is one replay"


@pytest.mark.parametrize("case", CASES)
def test_a_graph_for_each_shape_and_none_in_a_later_round(seen, case):
    """Seven clients in cohorts of three, two and two: equal shapes are shared, and what a cohort may read lasts."""
    found = seen[case]
    first, later = found.recorded
    if case in LASTS_A_FIT:
        assert (first, later) == (sum(found.shapes), 2 * sum(found.shapes))
    elif case == "sgd with a schedule":  # a learning rate of its own in every round, which fused kernels read there
        assert later in (first, 2 * first)
    else:
        assert max(found.shapes) <= first <= sum(found.shapes)
        assert later == first
