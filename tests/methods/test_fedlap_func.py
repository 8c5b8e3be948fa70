"""FedLap-Func: FedLap without a memory, stationary at the pooled optimum with one, and what travels when."""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.func import functional_call

from fedddp.clients.cohort import Cohort
from fedddp.config import loading as configuration
from fedddp.core.objective import Binary, CrossEntropy, MultiLabel, SquaredError
from fedddp.core.rng import stream
from fedddp.local import adam, sgd
from fedddp.methods import _memory, fedlap, fedlap_func
from fedddp.runs.build import make_task
from tests import toy
from tests.methods import given
from tests.small import MODELS, settings

LOCAL = sgd.Solver(lr=0.02, epochs=2, batch_size=5)


@pytest.fixture(scope="module")
def digits():
    words = settings("fedlap_func", *MODELS["mlp"], "federation.dtype=float64", "data.test_fraction=0.5")
    return make_task(configuration.load(None, words), torch.device("cpu"))


@pytest.mark.parametrize("points", [0, 2])
def test_with_nothing_to_remember_it_is_fedlap(exchange, points):
    """No points at all, or points that weigh nothing."""
    task = toy.task()
    method = fedlap_func.Method(delta=2.0, points=points, tau=0.0)
    a = toy.iterate(toy.federation(method, LOCAL, task, exchange), 4)
    b = toy.iterate(toy.federation(fedlap.Method(delta=2.0), LOCAL, task, exchange), 4)
    for one, other in zip(a, b, strict=True):
        assert torch.equal(one.theta, other.theta)


@pytest.mark.parametrize("binary", [False, True], ids=["regression", "binary"])
def test_the_pooled_optimum_stays_where_it_is(exchange, binary):
    """All function terms have gradient 0 there, for clients and server."""
    task, delta = toy.task(), 2.0
    if binary:
        data = replace(task.data.train, targets=(task.data.train.targets > 0).long())
        task = replace(task, data=replace(task.data, train=data, test=data, classes=2), objective=Binary())
    fed = toy.federation(fedlap_func.Method(delta=delta, points=3, tau=0.5), LOCAL, task, exchange)
    server = toy.iterate(fed, 1)[-1]
    cohort = Cohort(tuple(range(toy.K)), 1, task, fed.oracle)
    cohort = Cohort(tuple(sorted(cohort.ids, key=lambda k: -int(task.num_examples[k]))), 1, task, fed.oracle)
    theta = _optimum(cohort, delta)
    labels = torch.stack([_memory.predictions(task, theta, inputs) for inputs in server.inputs])
    server = server._replace(theta=theta, labels=labels)
    assert _memory.everyone(server, task).pull(theta.unsqueeze(0)).norm() < 1e-9
    recalling = cohort.steered(_memory.Recall(cohort, server))
    rows = theta.repeat(toy.K, 1)
    for batch in cohort.everything():
        torch.testing.assert_close(recalling.grad(rows, batch), cohort.grad(rows, batch), rtol=0, atol=1e-9)


def _optimum(cohort, delta):
    """argmin Σ_k f_k + ½ delta |theta|², by Newton-like steps on the summed gradient."""
    theta = torch.zeros(toy.D, dtype=torch.float64)
    for _ in range(400):
        slope = cohort.full_grad(theta.repeat(len(cohort), 1)).sum(0) + delta * theta
        theta = theta - 0.004 * slope
    assert slope.norm() < 1e-8
    return theta


def test_function_terms_are_those_of_equation_17(digits, exchange):
    """Written out for one client with plain autograd."""
    task = digits
    fed = toy.federation(fedlap_func.Method(tau=0.3), LOCAL, task, exchange)
    server = toy.iterate(fed, 1)[-1]
    client = int(task.num_examples.argmax())
    cohort = Cohort((client,), 1, task, fed.oracle)
    recalling = cohort.steered(_memory.Recall(cohort, server))
    theta = task.initial + 0.1
    batch = next(cohort.everything())
    extra = (recalling.grad(theta[None], batch) - cohort.grad(theta[None], batch))[0] * task.num_examples[client]

    leaf, total = theta.clone().requires_grad_(), 0.0
    for k in range(task.num_clients):
        theirs = task.outputs(server.theta, server.inputs[k]).softmax(1)
        logs = task.outputs(leaf, server.inputs[k]).log_softmax(1)
        total = total - (server.weight[k] * (theirs * logs).sum(1)).sum()
        if k == client:
            total = total + (server.weight[k] * (server.labels[k] * logs).sum(1)).sum()
    torch.testing.assert_close(extra, torch.autograd.grad(total, leaf)[0], rtol=1e-8, atol=1e-8)


def test_a_memory_is_one_point_of_each_class_that_speaks_for_its_class(digits):
    method = fedlap_func.Method(points=2, tau=0.5)
    client = 3
    inputs, weight = method._choice().choose(digits, client)
    own = digits.shards.of_client(client)
    pictures, targets = digits.data.train.inputs[own], digits.data.train.targets[own]
    assert float(weight.sum()) == pytest.approx(0.5 * len(own))
    for label in range(10):
        count = int((targets == label).sum())
        slots = slice(2 * label, 2 * label + 2)
        taken = min(2, count)
        assert weight[slots].tolist() == pytest.approx([0.5 * count / max(taken, 1)] * taken + [0.0] * (2 - taken))
        mine = pictures[targets == label]
        for picture in inputs[slots][:taken]:
            assert (mine == picture).flatten(1).all(1).any()
        assert not inputs[slots][taken:].any()


def test_inputs_travel_until_every_client_has_been_heard(digits, exchange):
    fed = toy.federation(fedlap_func.Method(steps=2), LOCAL, digits, exchange, participation=0.5)
    server, heard, sent = fed.method.init_server(digits), set(), []
    for number in range(8):
        before = set(heard)
        server, report = fed.round(server, number)
        heard |= set(report.clients.tolist())
        sent.append((len(before) == digits.num_clients, report.bytes))
        assert server.known.nonzero().flatten().tolist() == sorted(heard)
    later = {size for knew, size in sent if knew}
    assert len(later) == 1
    assert max(later) < min(size for knew, size in sent if not knew)


def test_public_inputs_are_shared_by_all(exchange):
    words = settings("fedlap_func", *MODELS["mlp"], "data.test_fraction=0.5", "data.validation=20")
    task = make_task(configuration.load(None, words), torch.device("cpu"))
    method = fedlap_func.Method(memory="validation", steps=20, tau=0.1, lr=0.01)
    fed = toy.federation(method, adam.Solver(lr=0.01, epochs=3), task, exchange)
    server = toy.iterate(fed, 3)[-1]
    assert server.inputs.shape[:2] == (1, 20)
    memory = _memory.everyone(server, task)
    assert memory.weight.shape == (1, 20)
    assert float(memory.weight.sum()) == pytest.approx(0.1 * int(task.num_examples.sum()), rel=1e-5)
    torch.testing.assert_close(memory.wanted.sum(2), memory.weight)
    with pytest.raises(ValueError, match=r"set data\.validation"):
        method.init_server(toy.task())


@pytest.mark.parametrize("objective", [CrossEntropy(), Binary(), MultiLabel(), SquaredError()])
@pytest.mark.parametrize("how", ["chain", "vmap", "loop"])
def test_the_pull_of_memories_is_the_gradient_of_their_losses(how, objective):
    """For several clients at once, each with two terms of its own for every input."""
    outputs = 1 if isinstance(objective, Binary) else 3
    module = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, outputs))
    task = replace(given.task(module, (5,)), objective=objective)
    draw = stream("memories")
    theta = task.initial + 0.1 * torch.randn(3, len(task.initial), generator=draw, dtype=torch.float64)
    inputs = task.data.train.inputs[:9]
    labels = torch.rand(2, 3, 9, outputs, generator=draw, dtype=torch.float64)
    labels = labels / labels.sum(-1, keepdim=True) if outputs > 1 else labels
    weight = torch.randn(2, 3, 9, generator=draw, dtype=torch.float64)
    memory = _memory.Memory(task, inputs, weight.sum(0), (weight.unsqueeze(3) * labels).sum(0), how != "loop")
    if how == "vmap":
        memory.__dict__["_by_hand"] = None
    leaf, total = theta.clone().requires_grad_(), 0.0
    for row in range(3):
        made = functional_call(module, task.layout.views(leaf[row]), (inputs,))
        for term in range(2):
            target = labels[term, row].squeeze(1) if outputs == 1 else labels[term, row]
            total = total + weight[term, row] @ objective.loss(made, target)
    found = memory.pull(theta)
    torch.testing.assert_close(found, torch.autograd.grad(total, leaf)[0], rtol=0, atol=1e-12)
    torch.testing.assert_close(memory.pull(theta[:2]), found[:2], rtol=0, atol=1e-14)
    assert (memory._by_hand is None) == (how != "chain")
