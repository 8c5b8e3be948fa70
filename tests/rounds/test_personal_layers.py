"""Layers of each client's own: never sent, kept by their client, and moved by the whole model's gradient."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from fedddp.core import tree
from fedddp.core.params import Layout
from fedddp.core.shards import Shards
from fedddp.local import sgd
from fedddp.methods import fedavg, scaffold
from fedddp.rounds.personal_layers import Division, Personal, PersonalSettings
from fedddp.runs import config as configuration
from fedddp.runs.build import make_federation, make_task
from fedddp.runs.table import FILE, read_tables
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
    return Personal(method, PersonalSettings(["2"], **more), toy_task.layout, toy_task.initial)


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


@pytest.mark.parametrize("method", ["fedavg", "scaffold", "mime", "bayes_admm"])
def test_the_same_bits_on_any_number_of_ranks_and_after_a_stop(worlds, tmp_path, method):
    more = ["method.personal=[3]", "checkpoint.every=1", "federation.participation=0.6", "evaluation.clients=server"]
    config = configuration.load(None, settings(method, *MODELS["mlp"], "federation.rounds=3", *more))
    whole = worlds(1).run(run, config, fresh(tmp_path, "1"))[0]
    assert worlds(3).run(run, config, fresh(tmp_path, "3"), False, 2) == [None] * 3
    resumed = worlds(2).run(run, config, str(tmp_path / "3"), True)[0]
    assert resumed["checksum"] == whole["checksum"]
    assert (tmp_path / "1" / FILE).read_text() == (tmp_path / "3" / FILE).read_text()
    assert {"accuracy", "server_accuracy"} <= set(read_tables(tmp_path / "1")[3].columns)


def test_what_does_not_fit_is_refused(exchange):
    for method, why in (("local", "models of their own"), ("ditto", "models of their own")):
        config = configuration.load(None, settings(method, *MLP, "method.personal=['0']"))
        with pytest.raises(ValueError, match=why):
            make_federation(config, make_task(config, CPU), exchange)
    config = configuration.load(None, settings("fedavg", *MLP, "method.personal=[head]"))
    with pytest.raises(ValueError, match=r"method\.personal=head: no layer of the model; did you mean|choose"):
        make_federation(config, make_task(config, CPU), exchange)


def test_a_method_that_looks_into_the_model_says_so(exchange, tmp_path):
    with pytest.raises(Exception, match=r"method\.personal: this method or solver looks into the model itself"):
        run(settings("fisher_merge", *MLP, "method.personal=[3]"), str(tmp_path / "run"))
