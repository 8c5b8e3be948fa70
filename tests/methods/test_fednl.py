"""FedNL: Newton's method where nothing is lost, superlinear where something is, and what its compressors send."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer
from torch import nn

from fedddp.core.data import Dataset, Examples
from fedddp.core.objective import CrossEntropy
from fedddp.core.params import Layout
from fedddp.core.rng import Streams, stream
from fedddp.core.shards import Shards
from fedddp.core.task import Task
from fedddp.exchange.reduce import Reduction
from fedddp.methods import fednl
from fedddp.methods._hessian_compressors import Compressor
from tests import toy
from tests.small import MODELS, fresh, run, settings

DECAY = 1e-2


def close(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.fixture(scope="module")
def cancer():
    """Logistic regression on the breast cancer data, over five clients that see the patients sorted by size."""
    x, y = load_breast_cancer(return_X_y=True)
    x = (x - x.mean(0)) / x.std(0)
    order = np.argsort(x[:, 0], kind="stable")
    examples = Examples(torch.tensor(x[order][:, :10]), torch.tensor(y[order]))
    module = nn.Linear(10, 2, dtype=torch.float64)
    return Task(
        module=module,
        layout=Layout.of(module),
        objective=CrossEntropy(),
        data=Dataset(examples, examples, classes=2),
        shards=Shards.of(list(torch.arange(len(y)).split([60, 90, 110, 140, 169]))),
        streams=Streams(0),
        rounds=50,
        initial=torch.zeros(22, dtype=torch.float64),
        dtype=torch.float64,
    )


def loss(task, theta, decay=DECAY):
    """The pooled, regularised mean loss."""
    views = task.layout.views(theta)
    outputs = task.data.train.inputs @ views["weight"].T + views["bias"]
    return nn.functional.cross_entropy(outputs, task.data.train.targets) + 0.5 * decay * theta.square().sum()


def newton(task, rounds):
    """The iterates of Newton's method."""
    path = [task.initial]
    for _ in range(rounds):
        hessian, slope = torch.func.hessian(loss, argnums=1), torch.func.grad(loss, argnums=1)
        path.append(path[-1] - torch.linalg.solve(hessian(task, path[-1]), slope(task, path[-1])))
    return path


def errors(exchange, task, rounds, **settings):
    best = newton(task, 20)[-1]
    fed = toy.federation(fednl.Method(decay=DECAY, **settings), None, task, exchange)
    return [float((s.theta - best).norm()) for s in toy.iterate(fed, rounds)]


@pytest.mark.parametrize("step", ["corrected", "projected"])
def test_on_quadratics_the_identity_is_newtons_method(exchange, step):
    """Whole Hessians at the start: the optimum after one round. None at the start: after two."""
    task = toy.task()
    best = toy.pooled(task, decay=0.5 * sum(toy.SIZES))
    for start, rounds in (("exact", 1), ("zero", 2)):
        method = fednl.Method(compressor="identity", step=step, start=start, decay=0.5)
        close(toy.iterate(toy.federation(method, None, task, exchange), rounds)[-1].theta, best)


def test_after_its_correction_the_identity_is_newtons_method_on_any_loss(exchange, cancer):
    method = fednl.Method(compressor="identity", after=True, start="zero", decay=DECAY)
    states = toy.iterate(toy.federation(method, None, cancer, exchange), 6)
    for state, theta in zip(states, newton(cancer, 6), strict=True):
        close(state.theta, theta)


def test_before_its_correction_the_hessian_is_the_last_rounds(exchange, cancer):
    """As published: the second step takes the Hessian of the first one's place."""
    method = fednl.Method(compressor="identity", step="projected", floor=1e-9, decay=DECAY)
    states = toy.iterate(toy.federation(method, None, cancer, exchange), 2)
    close(states[1].theta, newton(cancer, 1)[1])
    hessian = torch.func.hessian(loss, argnums=1)(cancer, cancer.initial)
    slope = torch.func.grad(loss, argnums=1)(cancer, states[1].theta)
    close(states[2].theta, states[1].theta - torch.linalg.solve(hessian, slope))


@pytest.mark.parametrize("settings", [{"rank": 1}, {"rank": 2}, {"compressor": "top", "top": 40}])
def test_the_error_falls_superlinearly(exchange, cancer, settings):
    """Ratios of successive errors become smaller: their (geometric) mean late is below that early."""
    found = np.array([e for e in errors(exchange, cancer, 40, **settings) if e > 1e-12])
    assert found[-1] < 1e-8
    ratios = np.log(found[1:] / found[:-1])
    half = len(ratios) // 2
    assert ratios[half:].mean() < ratios[:half].mean() - 0.1


def test_a_higher_rank_needs_fewer_rounds(exchange, cancer):
    needed = [next(i for i, e in enumerate(errors(exchange, cancer, 60, rank=r)) if e < 1e-8) for r in (1, 4)]
    assert needed[1] < needed[0]


def symmetric(count, size):
    half = torch.randn(count, size, size, generator=stream("symmetric"), dtype=torch.float64)
    return half + half.mT


@pytest.mark.parametrize(("kind", "amount"), [("identity", 0), ("rank", 2), ("top", 9)])
def test_what_the_server_receives_is_the_weighted_sum_of_what_clients_sent(exchange, kind, amount):
    matrix, weight = symmetric(3, 6), torch.tensor([1.0, 2.0, 5.0], dtype=torch.float64)
    compressor = Compressor(kind, amount)
    sent, fields = compressor.compress(matrix, weight)
    reduction = Reduction(slots=3)
    reduction.add(fields, torch.arange(3))
    total = reduction.total(exchange, reduction.exponents(), 1, torch.device("cpu"))
    close(compressor.arrived(total, 6), torch.einsum("k,kij->ij", weight, sent), 1e-12)
    close(sent, sent.mT, 1e-14)


def test_compressors_keep_the_largest():
    matrix = symmetric(3, 6)
    one = torch.ones(3, dtype=torch.float64)
    rank, _ = Compressor("rank", 2).compress(matrix, one)
    close((matrix - rank).flatten(1).norm(dim=1), torch.linalg.svdvals(matrix)[:, 2:].norm(dim=1))
    top, _ = Compressor("top", 4).compress(matrix, one)
    rows, columns = torch.triu_indices(6, 6)
    for whole, kept in zip(matrix, top, strict=True):
        left = kept[rows, columns] != 0
        assert left.sum() == 4
        assert whole[rows, columns][left].abs().min() >= whole[rows, columns][~left].abs().max()
    everything, _ = Compressor("top", 1000).compress(matrix, one)
    close(everything, matrix, 0.0)


@pytest.mark.parametrize(
    ("settings", "numbers"),
    [({"rank": 3}, 3 * 22 + 3), ({"compressor": "top", "top": 17}, 17 + 17 / 2), ({"compressor": "identity"}, 253)],
)
def test_bytes_are_counted_as_compressed(exchange, cancer, settings, numbers):
    """Float64 numbers beside the gradient, its weight, what is missing and its weight; a place is an int32."""
    fed = toy.federation(fednl.Method(start="zero", **settings), None, cancer, exchange)
    _, report = fed.round(fed.method.init_server(cancer), 0)
    assert report.bytes_up == 8 * (22 + 3 + numbers)
    assert report.bytes_down == 8 * 22


def test_noise_keeps_clients_and_server_in_step(exchange, cancer):
    """A client adds to its own estimate what it sent, noise and all."""
    fed = toy.federation(fednl.Method(noise=0.01), None, cancer, exchange)
    server = toy.iterate(fed, 4)[-1]
    share = cancer.num_examples.double() / cancer.num_examples.sum()
    close(server.hessian, torch.einsum("k,kij->ij", share, fed.store.memory.hessian), 1e-12)
    assert not torch.equal(
        server.theta, toy.iterate(toy.federation(fednl.Method(), None, cancer, exchange), 4)[-1].theta
    )


def test_gathered_eigenvectors_give_the_same_bits_on_any_number_of_ranks(worlds, tmp_path):
    words = settings("fednl", *MODELS["conv"], "method.compressor=rank", "federation.participation=0.6")
    words += ["model.channels=[4]", "data.test_fraction=0.92"]
    sums = [worlds(ranks).run(run, words, fresh(tmp_path, f"{ranks}"))[0]["checksum"] for ranks in (1, 3)]
    assert sums[0] == sums[1]
