"""hwa, fedcurv and the noise option: what they reduce to, and their sums written out."""

import pytest
import torch

from fedddp.clients.cohort import Cohort
from fedddp.clients.oracle import Oracle
from fedddp.config import loading as configuration
from fedddp.core.rng import stream
from fedddp.evaluation.evaluate import add_up
from fedddp.local import exact, sgd
from fedddp.methods import fedavg, fedcurv, fedprox, hwa
from fedddp.methods._channel import perturb
from fedddp.runs.build import make_federation, make_task
from tests import toy
from tests.methods import given
from tests.small import MODELS, settings

LOCAL = sgd.Solver(lr=0.05, epochs=3, batch_size=5)


def close(a, b, tolerance=1e-12):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def small(exchange, method, *words):
    config = configuration.load(None, settings(method, *MODELS["mlp"], *words))
    task = make_task(config, torch.device("cpu"))
    return make_federation(config, task, exchange)


def cohort_of(task):
    ids = sorted(range(task.num_clients), key=lambda k: -int(task.num_examples[k]))
    return Cohort(tuple(ids), 0, task, Oracle(task.module, task.layout, task.objective))


def aggregate(exchange, method, curvature):
    """The server's answer to given curvatures [C, P] of five clients with random parameters; and those."""
    task = toy.task()
    cohort, server = cohort_of(task), method.init_server(task)
    theta = torch.randn(toy.K, toy.D, generator=stream("theta"), dtype=torch.float64)
    total = add_up(exchange, [method._message(theta, curvature(cohort), cohort, server.chosen)], 1, task.device)
    mean = cohort.num_examples / cohort.num_examples.sum() @ theta
    return method.server_step(server, total, task).theta, theta, mean


def random_curvature(cohort):
    return torch.rand(len(cohort), toy.D, generator=stream("curvature"), dtype=torch.float64)


def test_without_curvature_hwa_is_fedavg(exchange):
    found, _, mean = aggregate(exchange, hwa.Method(), lambda cohort: torch.zeros(toy.K, toy.D, dtype=torch.float64))
    close(found, mean)


def test_with_curvature_like_the_number_of_examples_hwa_is_fedavg(exchange):
    found, _, mean = aggregate(
        exchange, hwa.Method(), lambda cohort: 0.7 * cohort.num_examples.unsqueeze(1).expand(-1, toy.D)
    )
    close(found, mean)


def test_hwa_weighs_each_coordinate_by_curvature(exchange):
    found, theta, _ = aggregate(exchange, hwa.Method(), random_curvature)
    weight = random_curvature(range(toy.K))
    close(found, (weight * theta).sum(0) / weight.sum(0))


def test_equation_seven_as_printed(exchange):
    found, theta, _ = aggregate(exchange, hwa.Method(rule="printed"), random_curvature)
    weight = random_curvature(range(toy.K))
    close(found, sum(d / (d.norm() + hwa.EPS) * w for d, w in zip(weight, theta, strict=True)))


def test_a_coordinate_that_no_client_feels_is_averaged(exchange):
    """A feature that is 0 in all data; the real thing, in a round."""
    task = toy.task()
    task.data.train.inputs[:, 2] = 0
    local = sgd.Solver(lr=0.05, epochs=3, batch_size=5, weight_decay=0.1)  # moves that coordinate too
    weighted, plain = (
        toy.iterate(toy.federation(m, local, task, exchange), 1)[-1].theta for m in (hwa.Method(), fedavg.Method())
    )
    close(weighted[2], plain[2], 0.0)
    assert (weighted - plain)[[0, 1, 3]].abs().min() > 1e-4


@pytest.mark.parametrize("layers", ["[]", "[1]", "[1,3.bias]"])
def test_other_layers_are_fedavgs(exchange, layers):
    """In every round, given where the round began."""
    fed, plain = small(exchange, "hwa", f"method.layers={layers}"), small(exchange, "fedavg")
    server = fed.method.init_server(fed.task)
    for number in range(3):
        averaged = plain.round(fedavg.Server(server.theta), number)[0].theta
        server = fed.round(server, number)[0]
        differ = (server.theta != averaged).nonzero().squeeze(1)
        assert set(differ.tolist()) <= set(server.chosen.tolist())
        assert len(differ) > len(server.chosen) // 3


def test_layers_are_chosen_by_name(exchange):
    layout = small(exchange, "hwa").task.layout
    place = layout.slices()
    assert torch.cat(hwa.places(layout, [])).tolist() == list(range(place["3.weight"].start, place["3.bias"].stop))
    assert torch.cat(hwa.places(layout, ["1.weight"])).tolist() == list(range(place["1.weight"].stop))
    assert len(torch.cat(hwa.places(layout, ["1", "3"]))) == layout.numel
    with pytest.raises(ValueError, match=r"method\.layers=2: must be among 1, 3, 1\.weight"):
        hwa.places(layout, ["2"])


def test_curvature_of_fewer_layers_is_fewer_bytes(exchange):
    """HWA, Fig. 10: the output layer's curvature costs little, that of all layers as much as the parameters."""
    up = []
    for layers in ("[]", "[1,3]"):
        fed = small(exchange, "hwa", f"method.layers={layers}")
        _, report = fed.round(fed.method.init_server(fed.task), 0)
        up.append(report.bytes_up)
    size = fed.task.layout.numel
    assert up == [4 * (size + 1 + 10 * 13), 4 * (2 * size + 1)]


def test_fedcurv_without_penalty_is_fedavg(exchange):
    task = toy.task()
    a = toy.iterate(toy.federation(fedcurv.Method(penalty=0.0), LOCAL, task, exchange), 5)
    b = toy.iterate(toy.federation(fedavg.Method(), LOCAL, task, exchange), 5)
    for one, other in zip(a, b, strict=True):
        assert torch.allclose(one.theta, other.theta, rtol=1e-13, atol=1e-15)  # fedavg steps in the products


@pytest.mark.parametrize("scale", ["sum", "mean"])
def test_fedcurv_holds_a_client_to_the_others(exchange, scale):
    """Round 1 is fedavg's; in round 2 each client's minimiser has the others' Fisher penalties, not its own."""
    task = toy.task()
    fed = toy.federation(fedcurv.Method(penalty=0.3, scale=scale), exact.Solver(), task, exchange)
    after_one, after_two = toy.iterate(fed, 2)[1:]
    per = [1.0] * toy.K if scale == "sum" else [1.0 / n for n in toy.SIZES]
    alone = [torch.linalg.solve(*toy.gram(task, k)) for k in range(toy.K)]
    fisher = []
    for k, theta in enumerate(alone):
        index = task.shards.of_client(k)
        x, y = task.data.train.inputs[index], task.data.train.targets[index]
        fisher.append(per[k] * (x * (x @ theta - y).unsqueeze(1)).square().sum(0))
    close(after_one.theta, sum(n * t for n, t in zip(toy.SIZES, alone, strict=True)) / sum(toy.SIZES), 1e-10)
    held = []
    for k in range(toy.K):
        hessian, shift = toy.gram(task, k)
        others = [j for j in range(toy.K) if j != k]
        precision = 2 * 0.3 * sum(fisher[j] for j in others)
        pull = 2 * 0.3 * sum(fisher[j] * alone[j] for j in others)
        held.append(torch.linalg.solve(per[k] * hessian + torch.diag(precision), per[k] * shift + pull))
    close(after_two.theta, sum(n * t for n, t in zip(toy.SIZES, held, strict=True)) / sum(toy.SIZES), 1e-10)


def test_fedcurvs_sums_are_over_all_stored_sites(exchange):
    fed = toy.federation(fedcurv.Method(penalty=0.1), exact.Solver(), toy.task(), exchange, participation=0.4)
    server = toy.iterate(fed, 7)[-1]
    close(server.sites, fed.store.memory.site.sum(0), 1e-10)


@pytest.mark.parametrize("method", [fedavg.Method, fedprox.Method, hwa.Method, fedcurv.Method])
def test_noise_is_each_clients_own_and_the_same_again(exchange, method):
    task = toy.task()
    plain, once, again = (
        toy.iterate(toy.federation(method(noise=noise), LOCAL, task, exchange, width=width), 2)[-1].theta
        for noise, width in ((0.0, 2), (0.1, 2), (0.1, 1))
    )
    close(once, again, 1e-9)  # the cohorts' width does not matter
    assert (once - plain).abs().min() > 1e-4


def test_noise_has_the_deviation_that_was_asked_for():
    cohort = cohort_of(toy.task())
    value = torch.ones(toy.K, 100_000, dtype=torch.float64)
    update, curvature = (perturb(value, 0.3, cohort, purpose) - 1 for purpose in ("update", "curvature"))
    close(update.std(dim=1), torch.full((toy.K,), 0.3).double(), 0.01)  # 4 deviations are 0.9 % here
    mixed = torch.corrcoef(torch.cat([update, curvature]))
    assert (mixed - torch.eye(2 * toy.K)).abs().max() < 0.02
    assert perturb(value, 0.0, cohort, "update") is value


def test_equation_six_with_a_scalar_loss_squares_the_sum(exchange):
    """The client's whole gradient squared, not the sum of its examples' squares; by hand for linear regression."""
    task = toy.task()
    theta = torch.randn(toy.K, toy.D, generator=stream("literal"), dtype=torch.float64)
    fed = toy.federation(hwa.Method(curvature="total"), given.Given(theta), task, exchange)
    found = toy.iterate(fed, 1)[-1].theta
    grams = [toy.gram(task, k) for k in range(toy.K)]
    weight = torch.stack([gram @ own - pull for own, (gram, pull) in zip(theta, grams, strict=True)]).square()
    close(found, (weight * theta).sum(0) / weight.sum(0))
