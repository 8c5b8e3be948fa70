"""FedPA: its recurrence against the explicit inverse, its sampler, and where it leads on linear regression."""

import pytest
import torch

from fedddp.clients.cohort import Cohort
from fedddp.clients.oracle import Oracle
from fedddp.config import loading as configuration
from fedddp.core import gaussian
from fedddp.core.rng import stream
from fedddp.figures import fedpa_toy
from fedddp.local import exact, iasg, sgd
from fedddp.methods import fedavg, fedavgm, fedpa
from tests import toy


def close(a, b, tolerance=1e-10):
    torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def cohort_of(task, ids, round_=0):
    ordered = sorted(ids, key=lambda k: -int(task.num_examples[k]))
    return Cohort(tuple(ordered), round_, task, Oracle(task.module, task.layout, task.objective))


def gaussian_samples(count, dims, scale=1.0):
    generator = stream("samples", count, dims)
    return scale * torch.randn(count, dims, generator=generator, dtype=torch.float64) + 0.5


@pytest.mark.parametrize("shrinkage", [0.0, 1e-4, 0.1, 1.0, 30.0])
@pytest.mark.parametrize("count", [1, 2, 3, 10, 25, 60])
@pytest.mark.parametrize("dims", [1, 7, 40])
def test_the_recurrence_is_the_explicit_shrinkage_inverse(dims, count, shrinkage):
    """Thm 3: Σ = w I + (1 - w) S with the sample covariance over ℓ - 1; fewer and more samples than dimensions."""
    samples, theta = gaussian_samples(count, dims), torch.linspace(-1, 1, dims, dtype=torch.float64)
    covariance = samples.T.cov().reshape(dims, dims) if count > 1 else torch.zeros(dims, dims, dtype=torch.float64)
    keep = 1 / (1 + (count - 1) * shrinkage)
    shrunk = keep * torch.eye(dims, dtype=torch.float64) + (1 - keep) * covariance
    close(fedpa.delta(theta, samples, shrinkage), torch.linalg.solve(shrunk, theta - samples.mean(0)))


@pytest.mark.parametrize("rule", ["rblw", "oas"])
@pytest.mark.parametrize(("count", "dims"), [(12, 30), (40, 5)])
def test_a_shrinkage_by_the_samples_is_that_of_the_whole_covariance(rule, count, dims):
    """Chen et al. (2010), Eq. 17 and 23, written out with the matrix; the change is by that weight's covariance."""
    samples = gaussian_samples(count, dims) * torch.logspace(0, 1, dims, dtype=torch.float64)
    n, s = count - 1, samples.T.cov()
    square, trace = float((s @ s).trace()), float(s.trace()) ** 2
    if rule == "rblw":
        weight = ((n - 2) / n * square + trace) / ((n + 2) * (square - trace / dims))
    else:
        weight = ((1 - 2 / dims) * square + trace) / ((n + 1 - 2 / dims) * (square - trace / dims))
    weight = min(1.0, weight)
    rho = fedpa.shrinkage_of(samples, rule)
    assert 1 / (1 + n * rho) == pytest.approx(weight, rel=1e-12)
    theta = torch.zeros(dims, dtype=torch.float64)
    shrunk = weight * torch.eye(dims, dtype=torch.float64) + (1 - weight) * s
    close(fedpa.delta(theta, samples, rho), torch.linalg.solve(shrunk, theta - samples.mean(0)), 1e-9)


def test_the_shrinkages_of_few_and_of_alike_samples():
    """One sample has no covariance; where all directions are alike the identity has all the weight."""
    assert fedpa.shrinkage_of(gaussian_samples(1, 5), "oas") == 0
    for rule in ("rblw", "oas"):
        assert fedpa.shrinkage_of(torch.eye(6, dtype=torch.float64), rule) == 0
        assert fedpa.shrinkage_of(gaussian_samples(8, 5), 0.3) == 0.3
    with pytest.raises(ValueError, match=r"method.shrinkage.*rblw or oas"):
        fedpa.Method(shrinkage="lw")


def test_samples_of_one_energy_count_whole():
    energy = torch.tensor([[3.0, 3.0, 3.0, 3.0], [0.0, torch.inf, torch.inf, torch.inf]], dtype=torch.float64)
    close(fedpa.kish(energy), torch.tensor([4.0, 1.0], dtype=torch.float64))


def test_the_recurrence_takes_memory_of_a_few_times_its_samples():
    """d x d would be 80 GB here. The largest tensors alive are watched through torch's own allocations."""
    count, dims = 10, 100_000
    samples = gaussian_samples(count, dims).float()
    largest = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            made = function(*args, **(kwargs or {}))
            largest.append(made.numel() if isinstance(made, torch.Tensor) else 0)
            return made

    with Watch():
        fedpa.delta(samples[0] + 1, samples, 0.1)
    assert max(largest) <= count * dims


@pytest.mark.parametrize("batch_size", [5, 100])
def test_one_sample_is_federated_averaging(exchange, batch_size):
    """The last iterate: one step per sample, all steps before it burn-in; clients of different lengths."""
    task, settings = toy.task(), {"lr": 0.05, "epochs": 3, "batch_size": batch_size, "momentum": 0.5}
    local = iasg.Solver(**settings, steps_per_sample=1, samples=1)
    a = toy.iterate(toy.federation(fedpa.Method(shrinkage=0.3), local, task, exchange), 4)
    b = toy.iterate(toy.federation(fedavgm.Method(momentum=0.0), sgd.Solver(**settings), task, exchange), 4)
    c = toy.iterate(toy.federation(fedavg.Method(), sgd.Solver(**settings), task, exchange), 4)
    for one, same, mean in zip(a, b, c, strict=True):
        assert torch.equal(one.theta, same.theta)
        close(one.theta, mean.theta, 1e-12)


def test_burn_in_rounds_are_federated_averaging(exchange):
    task, settings = toy.task(), {"lr": 0.05, "epochs": 3, "batch_size": 5}
    a = toy.iterate(toy.federation(fedpa.Method(burn_in_rounds=2), iasg.Solver(**settings), task, exchange), 3)
    b = toy.iterate(toy.federation(fedavgm.Method(momentum=0.0), sgd.Solver(**settings), task, exchange), 3)
    assert torch.equal(a[2].theta, b[2].theta)
    assert not torch.equal(a[3].theta, b[3].theta)


def test_exact_moments_are_the_inverse_covariance_times_the_way_to_the_mean(exchange):
    task = toy.task()
    cohort = cohort_of(task, range(toy.K))
    method = fedpa.Method(moments="exact")
    server = method.init_server(task)
    _, message = method.client_step(server, method.init_clients(toy.K, task, sgd.Solver()), cohort, sgd.Solver())
    for row, k in enumerate(cohort.ids):
        precision, shift = toy.gram(task, k)
        mean = torch.linalg.solve(precision, shift)
        close(message["change"].value[row], precision @ (server.theta - mean) / toy.SIZES[k])


def test_exact_moments_lead_to_the_pooled_optimum_where_fedavg_stalls(exchange):
    task = toy.task()
    best = toy.pooled(task)
    method = fedpa.Method(moments="exact", lr=0.5, momentum=0.5)
    close(toy.iterate(toy.federation(method, sgd.Solver(), task, exchange), 150)[-1].theta, best, 1e-9)
    stalled = toy.iterate(toy.federation(fedavg.Method(), exact.Solver(), task, exchange), 3)
    assert (stalled[-1].theta - best).norm() > 0.05
    close(stalled[-1].theta, stalled[-2].theta)  # it has stopped there


def test_more_samples_come_closer(exchange):
    """Posterior averaging (FedPA), Fig. 1, in small: fedavg stalls, fedpa gets the closer the more samples it takes."""

    def late(run):
        return float(fedpa_toy.distances(run, exchange, seeds=1, rounds=9)[:, -5:].mean())

    stalled = late(fedpa_toy.averaging(10))
    some, more = (late(fedpa_toy.posterior(samples)) for samples in (8, 24))
    assert more < 0.8 * some
    assert some < 0.8 * stalled


def test_each_client_has_as_many_samples_as_its_steps_allow():
    task = toy.task()
    solver = iasg.Solver(epochs=4, batch_size=5, burn_in=3, steps_per_sample=2)
    cohort = cohort_of(task, range(toy.K))
    first, length, count = (part.tolist() for part in solver._slots(cohort))
    steps = cohort.steps(4, 5).tolist()
    for f, n, c, s in zip(first, length, count, steps, strict=True):
        assert (n, c) == (2, (s - 3) // 2)
        assert f + n * c == s
        assert f >= 3
    _, samples = solver.sample(cohort, task.initial, solver.memory(task, toy.K))
    assert samples.own.tolist() == count
    assert len(set(count)) > 2
    for row, own in enumerate(count):
        assert bool((samples.theta[row, :own] != 0).all())
        assert bool((samples.theta[row, own:] == 0).all())


def test_samples_are_means_of_iterates():
    task = toy.task()
    cohort = cohort_of(task, range(toy.K))
    path = []
    solver = iasg.Solver(lr=0.05, epochs=3, batch_size=100, steps_per_sample=1)
    solver.minimise(cohort, task.initial, solver.memory(task, toy.K), watch=lambda _, here: path.append(here.clone()))
    double = iasg.Solver(lr=0.05, epochs=3, batch_size=100, steps_per_sample=2)
    _, samples = double.sample(cohort, task.initial, double.memory(task, toy.K))
    assert samples.own.tolist() == [1] * toy.K  # of three steps the first is burn-in
    close(samples.theta[:, 0], (path[1] + path[2]) / 2)


def test_a_client_too_short_for_a_sample_gives_its_last_iterate():
    task = toy.task()
    cohort = cohort_of(task, [0, 3])
    solver = iasg.Solver(lr=0.05, epochs=2, batch_size=5, burn_in=4, steps_per_sample=3)
    fit, samples = solver.sample(cohort, task.initial, solver.memory(task, 2))
    assert samples.own.tolist() == [2, 1]
    assert torch.equal(samples.theta[1, 0], fit.theta[1])


def test_a_change_that_is_not_finite_is_left_out_and_counted(exchange):
    """The learning rate is too much for one client's inputs."""
    task = toy.task()
    task.data.train.inputs[task.shards.of_client(3)] *= 1e160
    local = iasg.Solver(lr=0.05, epochs=3, batch_size=5, momentum=0.5, keep=True)
    fed = toy.federation(fedpa.Method(), local, task, exchange)
    server, report = fed.round(fed.method.init_server(task), 0)
    assert report.metrics["left_out"] == 1
    assert bool(server.theta.isfinite().all())
    assert bool(fed.store.memory.solver.velocity.isfinite().all())


def test_effective_sample_size(exchange):
    """Kish's number for known weights, and in the records when asked for."""
    task = toy.task(sizes=(12, 12))
    cohort = cohort_of(task, [0, 1])
    same = task.initial.expand(2, 5, -1).clone()
    close(fedpa.effective_size(cohort, iasg.Samples(same, torch.tensor([5, 3]))), torch.tensor([5.0, 3.0]).double())
    far = same.clone()
    far[:, 1:] += 100
    close(fedpa.effective_size(cohort, iasg.Samples(far, torch.tensor([5, 5]))), torch.ones(2).double())
    fed = toy.federation(fedpa.Method(ess=True), iasg.Solver(lr=0.05, epochs=6, batch_size=4), task, exchange)
    metrics = fed.round(fed.method.init_server(task), 0)[1].metrics
    assert metrics["samples"] == 6
    assert 1 <= metrics["ess"] <= 6


def test_a_solver_that_does_not_sample_is_refused():
    assert fedpa.Method().mismatch(sgd.Solver()) == "needs a sampling solver"
    assert not fedpa.Method().mismatch(iasg.Solver())
    assert not fedpa.Method(moments="exact").mismatch(sgd.Solver())
    with pytest.raises(ValueError, match=r"local=sgd: does not fit method=fedpa, .*choose local=iasg"):
        configuration.load(None, ["method=fedpa", "local=sgd"])


def test_samples_of_a_tilted_distribution_gather_around_its_mode():
    """A sampling solver takes a site: exp(-f_k - energy(site)), as expectation propagation needs it."""
    problem = toy.task()
    ids = tuple(sorted(range(toy.K), key=lambda k: (-toy.SIZES[k], k)))
    cohort = Cohort(ids, 0, problem, Oracle(problem.module, problem.layout, problem.objective))
    solver = iasg.Solver(lr=0.05, epochs=400, batch_size=1000, burn_in=300, steps_per_sample=10)
    precision = torch.full((problem.layout.numel,), 30.0, dtype=torch.float64)
    site = gaussian.diagonal.natural(torch.full_like(precision, 2.0), precision)
    fit, samples = solver.sample(cohort, problem.initial, solver.memory(problem, len(ids)), site)
    for row, client in enumerate(ids):
        hessian, shift = toy.gram(problem, client)
        mode = torch.linalg.solve(hessian + torch.diag(precision), shift + site[0])
        torch.testing.assert_close(samples.theta[row, : samples.own[row]].mean(0), mode, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(fit.theta[row], mode, rtol=1e-6, atol=1e-6)
