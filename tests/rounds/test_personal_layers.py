"""Layers of each client's own: never sent, kept by their client, and moved by the whole model's gradient."""

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedddp.clients.cohort import Cohort
from fedddp.clients.curvature import exact_hessian, ggn_diag, ggn_full, squared_grads
from fedddp.clients.kron import kron
from fedddp.clients.oracle import Oracle
from fedddp.config import loading as configuration
from fedddp.core import registry, tree
from fedddp.core.params import Layout
from fedddp.core.shards import Shards
from fedddp.local import sgd
from fedddp.methods import fedavg, scaffold
from fedddp.methods.regmean import grams
from fedddp.records.records import read_metrics
from fedddp.records.table import FILE, read_tables
from fedddp.rounds.method import Method
from fedddp.rounds.personal_layers import Clients, Closed, Division, Personal, PersonalSettings, Within
from fedddp.runs.build import make_federation, make_task
from tests import toy
from tests.small import MODELS, fresh, run, settings

CPU = torch.device("cpu")
MLP = [*MODELS["mlp"], "federation.rounds=2"]


def task(sizes=toy.SIZES):
    """The toy's data with a model of two layers."""
    module = nn.Sequential(nn.Linear(toy.D, 3, dtype=torch.float64), nn.Tanh(), nn.Linear(3, 1, dtype=torch.float64))
    layout, generator = Layout.of(module), torch.Generator().manual_seed(3)
    initial = torch.randn(layout.numel, generator=generator, dtype=torch.float64) / 2
    return replace(toy.task(sizes), module=module, layout=layout, initial=initial)


def wrapped(method, toy_task, **more):
    return Personal(method, PersonalSettings(["2"], **more), toy_task.module, toy_task.layout, toy_task.initial)


def rounds(method, solver, toy_task, exchange, count=3, participation=1.0):
    federation = toy.federation(method, solver, toy_task, exchange, participation)
    server = method.init_server(toy_task)
    for number in range(count):
        server, report = federation.round(server, number)
    return federation, server, report


SOLVER = sgd.Solver(lr=0.05, epochs=2, batch_size=7)


def test_one_client_alone_learns_as_if_nothing_were_divided(exchange):
    """Its own layers take the solver's steps beside the others, from the same gradients."""
    alone = task((30,))
    federation, server, _ = rounds(wrapped(fedavg.Method(), alone), SOLVER, alone, exchange)
    _, whole, _ = rounds(fedavg.Method(), SOLVER, alone, exchange)
    own = federation.own_models(server)
    assert torch.allclose(own[0], whole.theta, rtol=1e-12, atol=1e-15)  # undivided, sgd steps in the products
    assert len(server.theta) == alone.layout.numel - 4


def test_a_client_learns_its_own_layers_from_its_own_examples(exchange):
    """Each client's own layers are those of a run with it alone, where the shared ones stay as they are."""
    together = task()
    frozen = sgd.Solver(lr=1e-30, epochs=2, batch_size=7)
    federation, _, _ = rounds(wrapped(fedavg.Method(), together, personal_lr=0.05), frozen, together, exchange)
    for client, size in enumerate(toy.SIZES):
        part = together.shards.of_client(client)
        alone = replace(together, shards=Shards(part, torch.tensor([0, size])))
        model = wrapped(fedavg.Method(), alone, personal_lr=0.05)
        plain = replace(alone, streams=replace(alone.streams, kind="independent"))
        found, _, _ = rounds(model, frozen, plain, exchange)
        mine = federation.store.memory.own[client]
        assert mine.shape == found.store.memory.own[0].shape
        assert not torch.equal(mine, together.initial[-4:])
        if client == 0:  # its streams are those of the run with it alone
            torch.testing.assert_close(mine, found.store.memory.own[0], rtol=1e-12, atol=1e-12)


def test_fedrep_trains_the_own_layers_first_and_the_rest_with_them_fixed(exchange):
    alone = task((30,))
    model = wrapped(fedavg.Method(), alone, personal_epochs=1, personal_lr=0.1)
    whole = sgd.Solver(lr=0.05, epochs=1, batch_size=100)
    federation, server, _ = rounds(model, whole, alone, exchange, count=1)
    theta = alone.initial.clone().requires_grad_()

    def slope(at):
        outputs = torch.func.functional_call(alone.module, alone.layout.views(at), (alone.data.train.inputs,))
        return torch.autograd.grad(alone.objective.loss(outputs, alone.data.train.targets).mean(), at)[0]

    first = theta.detach().clone()
    first[-4:] -= 0.1 * slope(theta)[-4:]
    second = first.clone()
    second[:-4] -= 0.05 * slope(first.requires_grad_())[:-4]
    torch.testing.assert_close(federation.own_models(server)[0], second.detach(), rtol=1e-12, atol=1e-12)


def test_nothing_of_the_own_layers_is_sent_and_they_stay_with_a_client_that_is_away(exchange):
    toy_task = task()
    method = wrapped(scaffold.Method(), toy_task)
    federation = toy.federation(method, SOLVER, toy_task, exchange, participation=0.4)
    server = method.init_server(toy_task)
    shared = toy_task.layout.numel - 4
    assert {leaf.shape[-1] for leaf in tree.leaves(server).values() if leaf.dim()} == {shared}
    for number in range(3):
        before = federation.store.memory.own.clone()
        server, report = federation.round(server, number)
        away = torch.ones(toy.K, dtype=torch.bool)
        away[report.clients] = False
        assert torch.equal(federation.store.memory.own[away], before[away])
        assert (federation.store.memory.own != before)[~away].any(1).all()
        plain = toy.federation(scaffold.Method(), SOLVER, toy_task, exchange, participation=0.4)
        assert report.bytes_up < plain.round(scaffold.Method().init_server(toy_task), number)[1].bytes_up


def test_names_are_layers():
    layout = task().layout
    division = Division.of(layout, ["2"])
    assert division.layout.names == ("0.weight", "0.bias")
    assert division.own.tolist() == list(range(15, 19))
    assert Division.of(layout, ["2.bias"]).own.tolist() == [18]
    whole = division.join(torch.arange(15.0), torch.arange(8.0).view(2, 4) + 100)
    assert whole[1].tolist() == [*range(15), 104, 105, 106, 107]
    with pytest.raises(ValueError, match=r"method\.personal=head: no layer of the model"):
        Division.of(layout, ["head"])
    with pytest.raises(ValueError, match="names all of the model"):
        Division.of(layout, ["0", "2"])


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "mime", "bayes_admm", "fedlap_cov", "regmean"])
def test_the_same_bits_on_any_number_of_ranks_and_after_a_stop(worlds, tmp_path, method):
    more = ["method.personal=[3]", "checkpoint.every=1", "federation.participation=0.6", "evaluation.clients=server"]
    config = configuration.load(None, settings(method, *MODELS["mlp"], "federation.rounds=3", *more))
    whole = worlds(1).run(run, config, fresh(tmp_path, "1"))[0]
    assert worlds(3).run(run, config, fresh(tmp_path, "3"), False, 2) == [None] * 3
    resumed = worlds(2).run(run, config, str(tmp_path / "3"), True)[0]
    assert resumed["checksum"] == whole["checksum"]
    assert (tmp_path / "1" / FILE).read_text() == (tmp_path / "3" / FILE).read_text()
    assert {"accuracy", "server_accuracy"} <= set(read_tables(tmp_path / "1")[3].columns)


def inside(toy_task, clients=(0, 1, 2)):
    """A cohort, whole parameters, the same cohort with last layers of clients' own, its parameters and their places."""
    layout, generator = toy_task.layout, torch.Generator().manual_seed(5)
    cohort = Cohort(clients, 0, toy_task, Oracle(toy_task.module, layout, toy_task.objective))
    theta = torch.randn(len(clients), layout.numel, generator=generator, dtype=torch.float64)
    method = wrapped(fedavg.Method(), toy_task)
    division, found = method._division, []

    def keep(server, memory, inner, local):
        found.append(inner)
        return memory, {}

    memory = Clients(None, theta[:, division.own])
    method._step(keep, True, False, None, memory, cohort, SOLVER)
    return cohort, theta, found[0], theta[:, division.shared], division.shared


def test_curvature_is_that_of_the_whole_model_at_the_shared_parameters(exchange):
    cohort, theta, inner, shared, places = inside(task())
    assert torch.equal(ggn_diag(inner, shared), ggn_diag(cohort, theta)[:, places])
    assert torch.equal(squared_grads(inner, shared), squared_grads(cohort, theta)[:, places])
    chosen = torch.tensor([3, 0, 14])
    assert torch.equal(squared_grads(inner, shared, chosen), squared_grads(cohort, theta, places[chosen]))
    for whole in (ggn_full, exact_hessian):
        assert torch.equal(whole(inner, shared), whole(cohort, theta)[:, places][:, :, places])
    blocks, all_blocks = kron(inner, shared).blocks, kron(cohort, theta).blocks
    assert len(blocks) == 2
    for block, own in zip(blocks, all_blocks, strict=False):  # the first layer's weight and bias
        assert all(torch.equal(a, b) for a, b in zip(block, own, strict=True))


def test_layers_are_fed_what_the_clients_own_give(exchange):
    """Own first layers: the last one's inputs, which regmean needs, are each client's own hidden units."""
    toy_task = task()
    cohort, theta, inner, *_ = inside(toy_task)
    division = Division.of(toy_task.layout, ["0"])
    inner = replace(inner, task=wrapped(fedavg.Method(), toy_task)._task(toy_task))
    inner.oracle = Within(cohort.oracle, division, theta[:, division.own])
    inner.task = replace(inner.task, module=Closed(toy_task.module, division.layout), layout=division.layout)
    found, whole = grams(inner, theta[:, division.shared]), grams(cohort, theta)
    assert list(found) == ["2."]
    assert torch.equal(found["2."], whole["2."])


@pytest.mark.parametrize("method", registry.builtin("method"))
def test_every_method_has_personal_layers_or_says_why_not(exchange, tmp_path, method):
    epochs = ["method.personal_epochs=1"] if method == "fednl" else []
    config = configuration.load(None, settings(method, *MODELS["mlp"], "federation.rounds=1", "method.personal=[3]"))
    own = type(config.method).own_models is not Method.own_models
    if why := config.method.undivided or ("models of their own" if own else ""):
        with pytest.raises(ValueError, match=f"method.personal: not for method={method}, .*{re.escape(why)}; leave it"):
            make_federation(config, make_task(config, CPU), exchange)
        return
    words = settings(method, *MODELS["mlp"], "federation.rounds=1", "method.personal=[3]", *epochs)
    run(words, str(tmp_path / "run"))
    assert "accuracy" in read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]


def test_what_does_not_fit_is_refused(exchange):
    for method, why in (("local", "models of their own"), ("ditto", "models of their own")):
        config = configuration.load(None, settings(method, *MLP, "method.personal=['0']"))
        with pytest.raises(ValueError, match=why):
            make_federation(config, make_task(config, CPU), exchange)
    config = configuration.load(None, settings("fedavg", *MLP, "method.personal=[head]"))
    with pytest.raises(ValueError, match=r"method\.personal=head: no layer of the model; did you mean|choose"):
        make_federation(config, make_task(config, CPU), exchange)


@pytest.mark.parametrize("words", [["fednl"], ["pvi", "local=von", "local.curvature=ggn"]])
def test_layers_that_nothing_would_move_are_refused(exchange, tmp_path, words):
    with pytest.raises(Exception, match=r"method\.personal_epochs=0: must be at least 1 where"):
        run(settings(words[0], *MLP, "method.personal=[3]", *words[1:]), str(tmp_path / "run"))


def test_a_server_that_would_look_at_the_whole_model_says_so(exchange, tmp_path):
    choose = ["method.choices=[0.1,0.9]", "data.validation=20"]
    with pytest.raises(Exception, match=r"method\.personal: this needs the whole model at the server"):
        run(settings("regmean", *MLP, "method.personal=[3]", *choose), str(tmp_path / "run"))
