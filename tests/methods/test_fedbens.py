"""FedBEns: products of the clients' mixtures, found by phases; clients that come and go."""

from dataclasses import field, replace
from functools import partial
from itertools import product

import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal

from fedddp.clients.cohort import Cohort
from fedddp.clients.kron import Kron
from fedddp.clients.oracle import Oracle
from fedddp.core.data import Examples
from fedddp.core.rng import stream
from fedddp.exchange.messages import Sum
from fedddp.local import exact, sgd
from fedddp.methods import _mixture, fedbens
from fedddp.methods._correlation import sums, value
from fedddp.methods._layers import initialisations
from fedddp.methods._mixture import Mixture, medians, slope
from fedddp.methods._structures import STRUCTURES
from fedddp.rounds.failures import ServerFailed
from tests import toy
from tests.methods import given

GAUSSIAN = {"members": 1, "temperature": 0.5, "prior_variance": 0.8, "lr": 0.05}


def close(a, b, tolerance=1e-9):
    torch.testing.assert_close(torch.as_tensor(a), torch.as_tensor(b), rtol=tolerance, atol=tolerance)


def gradient(fed, theta, number=0):
    """Of the server's objective at theta [M, P], from what all clients send."""
    total = sent(fed, theta, number)
    return total["slope"] + fed.method._prior_precision(total) * theta


def sent(fed, theta, number=0):
    """What all clients say of theta [M, P] in a descent, summed."""
    server = fed.method.init_server(fed.task)
    server = server._replace(descent=server.descent._replace(theta=theta))
    ids = fed.store.ids
    cohort = Cohort(tuple(ids.tolist()), number, fed.task, fed.oracle)
    _, message = fed.method._slope(server, fed.store.read(ids), cohort, fed.local)
    assert all(isinstance(entry, Sum) for entry in message.values())
    return {name: entry.value.sum(0) for name, entry in message.items()}


def posterior(task, method, clients):
    """The product of the clients' Gaussians over prior^(K-1), with the structure's precisions, in closed form."""
    eye = torch.eye(task.layout.numel, dtype=torch.float64)
    precision, shift = eye / method.prior_variance, 0.0
    for k in clients:
        hessian, pull = toy.gram(task, k)
        mode = torch.linalg.solve(hessian + eye * method.temperature / method.prior_variance, pull)  # of its posterior
        kept = hessian if method.structure == "kron" else torch.diag(hessian.diagonal())
        own = kept / method.temperature + eye / method.prior_variance
        shift = shift + own @ mode
        precision = precision + kept / method.temperature
    return torch.linalg.solve(precision, shift)


@pytest.mark.parametrize("structure", ["diag", "kron"])
def test_one_component_on_quadratics_is_the_product_of_gaussians_over_the_prior(exchange, structure):
    task = toy.task()
    method = fedbens.Method(structure=structure, prior_at_clients=True, steps=200, **GAUSSIAN)
    fed = toy.federation(method, exact.Solver(), task, exchange)
    server = toy.iterate(fed, 1)[-1]
    truth = posterior(task, method, range(toy.K))
    close(gradient(fed, truth[None]), torch.zeros(1, toy.D, dtype=torch.float64), 1e-8)
    close(server.theta, truth, 1e-3)
    if structure == "kron":  # exact for one linear layer: the pooled posterior, tempered
        close(truth, toy.pooled(task, decay=method.temperature / method.prior_variance))


@pytest.mark.parametrize("structure", ["diag", "kron"])
def test_clients_may_have_priors_of_their_own(exchange, structure):
    """Eq. 13 with one component on quadratics: p_global times the product of posteriors over the clients' priors."""
    task, variances = toy.task(), [0.5, 2.0, 0.3, 1.0, 4.0]
    method = fedbens.Method(
        structure=structure, prior_at_clients=True, client_variances=variances, steps=200, **GAUSSIAN
    )
    fed = toy.federation(method, exact.Solver(), task, exchange)
    server = toy.iterate(fed, 1)[-1]
    eye, t = torch.eye(toy.D, dtype=torch.float64), method.temperature
    precision, shift = eye / method.prior_variance, 0.0
    for k, variance in enumerate(variances):
        hessian, pull = toy.gram(task, k)
        mode = torch.linalg.solve(hessian + eye * t / variance, pull)
        kept = hessian if structure == "kron" else torch.diag(hessian.diagonal())
        shift = shift + (kept / t + eye / variance) @ mode
        precision = precision + kept / t
    truth = torch.linalg.solve(precision, shift)
    close(gradient(fed, truth[None]), torch.zeros(1, toy.D, dtype=torch.float64), 1e-8)
    close(server.theta, truth, 1e-3)
    if structure == "kron":  # each client's prior has gone again: the pooled posterior under the server's
        close(truth, toy.pooled(task, decay=t / method.prior_variance))


@pytest.mark.parametrize("structure", ["diag", "kron"])
def test_alike_priors_of_their_own_are_the_one_prior(exchange, structure):
    task = given.task(given.mlp(), (5,))
    options = {"members": 2, "structure": structure, "steps": 3, "prior_variance": 0.7, "prior_at_clients": True}
    local = sgd.Solver(lr=0.05, epochs=2, batch_size=10)
    both = (fedbens.Method(**options), fedbens.Method(client_variances=[0.7] * task.num_clients, **options))
    feds = [toy.federation(method, local, task, exchange) for method in both]
    one, other = (toy.iterate(fed, 1)[-1] for fed in feds)
    close(one.members, other.members)
    close(feds[0].store.memory.logdet, feds[1].store.memory.logdet)


@pytest.mark.parametrize("correlation", [-0.4, 0.2])
def test_clients_may_be_correlated(exchange, correlation):
    """Eq. 14 with g the product of whitened residuals: the minimum of the whole quadratic, pairs and all."""
    task = toy.task()
    method = fedbens.Method(structure="diag", correlation=correlation, steps=300, **GAUSSIAN)
    fed = toy.federation(method, exact.Solver(), task, exchange)
    server = toy.iterate(fed, 1)[-1]
    memory, t, variance = fed.store.memory, method.temperature, method.prior_variance
    curvature, modes = memory.curvature[:, 0] / t, memory.modes[:, 0]
    theta = torch.zeros(toy.D, dtype=torch.float64, requires_grad=True)

    def objective(w):
        residuals = curvature.sqrt() * (w - modes)
        pairs = sum((residuals[k] * residuals[j]).sum() for k in range(toy.K) for j in range(k))
        own = 0.5 * ((curvature + 1 / variance) * (w - modes).square()).sum()
        return own - correlation * pairs - 0.5 * (toy.K - 1) * w.square().sum() / variance

    slope, hessian = torch.autograd.grad(objective(theta), theta)[0], torch.func.hessian(objective)(theta.detach())
    assert float(torch.linalg.eigvalsh(hessian).min()) > 0
    close(server.theta, torch.linalg.solve(hessian, -slope), 1e-3)
    total = {name: entry.value.sum(0) for name, entry in sums(memory, theta.detach()[None], t).items()}
    own = 0.5 * (curvature * modes.square()).sum()  # at 0
    pairs = objective(theta.detach()) - 0.5 / variance * modes.square().sum() - own
    close(value(total, correlation), pairs.view(1))


@pytest.mark.parametrize(
    ("options", "said"),
    [({"correlation": 0.1}, "members=1"), ({"correlation": 0.3, "structure": "diag", "members": 1}, "to 1/4")],
)
def test_a_correlation_that_cannot_be_is_said(options, said):
    with pytest.raises(ValueError, match=said):
        fedbens.Method(**options).init_server(toy.task())


def precisions(task, method, rows):
    """[L, P, P] of stored curvature rows, as plain matrices."""
    eye = torch.eye(task.layout.numel, dtype=torch.float64)
    if method.structure == "kron":
        blocks = Kron.unflatten(rows, task.layout).blocks
        kept = [torch.block_diag(*(torch.kron(b.outer[m], b.inner[m]) for b in blocks)) for m in range(len(rows))]
    else:
        kept = [torch.diag(row) for row in rows]
    return torch.stack(kept) / method.temperature + eye / method.prior_variance


@pytest.mark.parametrize(("structure", "rule"), [("diag", "divided"), ("kron", "divided"), ("kron", "printed")])
def test_the_gradient_is_that_of_the_log_mixtures(exchange, structure, rule):
    """Against torch's own densities, ½ log |Λ| included; Eq. 5 adds the prior's log where Eq. 4 takes it away."""
    task = given.task(given.mlp(), (5,))
    method = fedbens.Method(members=3, structure=structure, steps=1, temperature=2.0, prior_variance=0.7, rule=rule)
    local = sgd.Solver(lr=0.05, epochs=3, batch_size=10)
    fed = toy.federation(method, local, task, exchange)
    toy.iterate(fed, 1)
    memory = fed.store.memory
    theta = memory.modes[:, :2].mean((0, 1)) + 0.05 * torch.randn(
        2, task.layout.numel, generator=stream(9), dtype=torch.float64
    )
    theta.requires_grad_()
    objective = 0.0
    for k in range(3):
        parts = [
            MultivariateNormal(m, precision_matrix=p)
            for m, p in zip(memory.modes[k], precisions(task, method, memory.curvature[k]), strict=True)
        ]
        objective = objective - (
            torch.stack([part.log_prob(theta) for part in parts]) - torch.tensor(3.0).log()
        ).logsumexp(0)
    prior = MultivariateNormal(torch.zeros_like(theta[0]), 0.7 * torch.eye(len(theta[0]), dtype=torch.float64))
    objective = objective + (2 if rule == "divided" else -2) * prior.log_prob(theta)
    (truth,) = torch.autograd.grad(objective.sum(), theta)
    close(gradient(fed, theta.detach()), truth, 1e-7)


@pytest.mark.parametrize("structure", STRUCTURES)
@pytest.mark.parametrize(("cached", "most"), [(1 << 21, 1 << 26), (1, 1 << 26), (1, 1)])
def test_mixtures_together_are_as_one_component_after_the_other(structure, cached, most, monkeypatch):
    """In portions of any size, with a client of fewer components and one that has none."""
    monkeypatch.setattr(_mixture, "CACHED", cached)
    monkeypatch.setattr(_mixture, "MOST", most)
    task, kept, draw = given.task(given.mlp(), (5,)), STRUCTURES[structure], stream(structure)
    cohort = Cohort((1, 2, 0), 0, task, Oracle(task.module, task.layout, task.objective))
    rows = torch.stack([kept.measure(cohort, given.around(task, spread)) for spread in (0.1, 0.2)], 1)
    modes = 0.05 * torch.randn(3, 2, task.layout.numel, generator=draw, dtype=torch.float64)
    weight = torch.tensor([[0.3, 0.7], [0, 0], [1, 0]], dtype=torch.float64)
    logdet, theta = torch.rand(3, 2, generator=draw, dtype=torch.float64), modes[0] + modes[2, 0]
    times = partial(kept.product, task, delta=0.4)
    slopes, values = slope(Mixture(modes, rows, logdet, weight), theta, times, temperature=2.0)
    for c, m in product(range(3), range(2)):
        parts = weight[c].nonzero().flatten().tolist()
        pulls = [times(rows[c, [n]], (theta[m] - modes[c, n]).view(1, 1, -1)).flatten() / 2.0 for n in parts]
        energy = [0.5 * (theta[m] - modes[c, n]) @ pull for n, pull in zip(parts, pulls, strict=True)]
        logs = [weight[c, n].log() + 0.5 * logdet[c, n] - e for n, e in zip(parts, energy, strict=True)]
        share = torch.stack(logs).softmax(0) if logs else []
        close(slopes[c, m], sum((r * pull for r, pull in zip(share, pulls, strict=True)), torch.zeros_like(theta[m])))
        close(values[c, m], -torch.stack(logs).logsumexp(0) if logs else torch.zeros_like(values[c, m]))


@pytest.mark.parametrize(("rule", "share"), [("divided", toy.K), ("printed", toy.K / (2 * toy.K - 1))])
def test_where_nobody_has_curvature_the_rules_part(exchange, rule, share):
    """Clients that train on their likelihood stay at the start there: K times as far, or half of it."""
    task = toy.task(start=0.3)
    task.data.train.inputs[:, 2] = 0.0
    local = sgd.Solver(lr=0.05, epochs=2, batch_size=5)
    method = fedbens.Method(structure="diag", steps=400, rule=rule, **(GAUSSIAN | {"lr": 0.02}))
    server = toy.iterate(toy.federation(method, local, task, exchange), 1)[-1]
    close(server.theta[2], torch.tensor(0.3 * share, dtype=torch.float64), 1e-3)


class Counted(exact.Solver):
    """Remembers who trained."""

    trained: list[int] = field(default_factory=list)

    def minimise(self, cohort, *args, **options):
        self.trained += cohort.ids
        return super().minimise(cohort, *args, **options)


@pytest.mark.parametrize("structure", ["diag", "kron"])
def test_removing_a_client_is_never_having_had_it(exchange, structure):
    task = toy.task()
    settings = {"structure": structure, "prior_at_clients": True, "steps": 120, **GAUSSIAN}
    local = Counted()
    left = toy.iterate(toy.federation(fedbens.Method(leave=[1], **settings), local, task, exchange), 2)
    never = toy.iterate(toy.federation(fedbens.Method(join=[1], **settings), exact.Solver(), task, exchange), 1)
    assert torch.equal(left[2].members, never[1].members)
    assert not torch.equal(left[1].members, left[2].members)
    assert sorted(local.trained) == list(range(toy.K))  # nobody trained again
    close(left[2].theta, posterior(task, fedbens.Method(**settings), [0, 2, 3, 4]), 1e-3)


def test_a_client_that_joins_trains_alone(exchange):
    task = toy.task()
    local = Counted()
    settings = {"structure": "diag", "prior_at_clients": True, "steps": 20, **GAUSSIAN}
    joined = toy.iterate(toy.federation(fedbens.Method(join=[2, 4], **settings), local, task, exchange), 2)
    assert sorted(local.trained[:3]) == [0, 1, 3]
    assert sorted(local.trained[3:]) == [2, 4]
    whole = toy.iterate(toy.federation(fedbens.Method(**settings), exact.Solver(), task, exchange), 1)
    assert torch.equal(joined[2].members, whole[1].members)


def test_nobody_left_is_an_error(exchange):
    fed = toy.federation(fedbens.Method(join=list(range(toy.K)), steps=1), exact.Solver(), toy.task(), exchange)
    with pytest.raises(ServerFailed, match="none of the round's clients is in the federation"):
        toy.iterate(fed, 1)


def test_clients_may_have_mixtures_of_different_sizes(exchange):
    task = given.task(given.mlp(), (5,))
    method = fedbens.Method(members=2, mixtures=[1, 3, 2], structure="diag", steps=5)
    fed = toy.federation(method, sgd.Solver(lr=0.05, batch_size=10), task, exchange)
    server = toy.iterate(fed, 1)[-1]
    close(fed.store.memory.weight, torch.tensor([[1, 0, 0], [1 / 3, 1 / 3, 1 / 3], [0.5, 0.5, 0]], dtype=torch.float64))
    assert (fed.store.memory.modes[0, 1:] == 0).all()
    assert server.members.shape == (2, task.layout.numel)
    with pytest.raises(ValueError, match="one for each of 3 clients"):
        fedbens.Method(members=2, mixtures=[1, 2]).init_server(task)
    with pytest.raises(ValueError, match="largest of"):
        fedbens.Method(members=3, mixtures=[1, 2, 1])
    with pytest.raises(ValueError, match=r"leave=\[3\]"):
        fedbens.Method(structure="diag", leave=[3]).init_server(task)


class Failing(sgd.Solver):
    """Client 1 cannot train."""

    def minimise(self, cohort, *args, **options):
        if 1 in cohort.ids:
            raise RuntimeError("no")
        return super().minimise(cohort, *args, **options)


def test_a_client_that_fails_to_train_is_not_counted(exchange):
    task = given.task(given.mlp(), (5,))
    settings = {"members": 2, "structure": "diag", "steps": 5}
    failed = toy.federation(fedbens.Method(**settings), Failing(lr=0.05), task, exchange)
    failed.skip_bad = True
    without = toy.federation(fedbens.Method(join=[1], **settings), sgd.Solver(lr=0.05), task, exchange)
    assert torch.equal(toy.iterate(failed, 1)[-1].members, toy.iterate(without, 1)[-1].members)


def test_members_share_initialisations_and_differ_in_batch_order(exchange):
    """Components of one initialisation differ by their streams alone; the first has the run's own."""
    task = given.task(given.mlp(), (5,))
    local = sgd.Solver(lr=0.05, batch_size=10)
    fed = toy.federation(
        fedbens.Method(members=1, mixtures=[2, 2, 2], structure="diag", steps=1), local, task, exchange
    )
    toy.iterate(fed, 1)
    modes = fed.store.memory.modes
    assert 1e-6 < (modes[:, 0] - modes[:, 1]).norm() < 0.1 * (modes[:, 0] - task.initial).norm() + 0.1
    cohort = Cohort((1,), 0, task, Oracle(task.module, task.layout, task.objective))
    close(modes[1, 0], local.minimise(cohort, task.initial, local.memory(task, 1)).theta[0])
    starts = initialisations(task, 3)
    assert torch.equal(starts[0], task.initial)
    assert (starts[1] - starts[2]).norm() > 1
    assert torch.equal(initialisations(task, 2), starts[:2])


def test_a_layer_that_cannot_be_started_anew_is_named():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(3))

    task = given.task(nn.Sequential(nn.Linear(5, 3), Scaled()), (5,))
    with pytest.raises(ValueError, match=r"'1'.*reset_parameters.*method\.members=1"):
        initialisations(task, 2)
    assert len(initialisations(task, 1)) == 1


def test_descents_begin_at_the_medians():
    modes = torch.randn(4, 3, 6, generator=stream(1), dtype=torch.float64)
    weight = torch.tensor([[0.5, 0.5, 0], [1 / 3, 1 / 3, 1 / 3], [0, 0, 0], [1, 0, 0]], dtype=torch.float64)
    found = medians(modes, weight, 2)
    close(found[0], modes[[0, 1, 1, 3], [0, 0, 2, 0]].quantile(0.5, dim=0))
    close(found[1], modes[:2, 1].mean(0))
    close(medians(modes[:1], weight[3:], 2)[1], modes[0, 0])  # nobody has the second: all there is


def test_validation_points_choose_each_members_best(exchange):
    task = given.task(given.mlp(), (5,))
    held = Examples(task.data.train.inputs[:40], task.data.train.targets[:40])
    task = replace(task, data=replace(task.data, validation=held))
    method = fedbens.Method(members=3, structure="diag", steps=30, lr=0.05, validate_every=5)
    server = toy.iterate(toy.federation(method, sgd.Solver(lr=0.1, batch_size=10), task, exchange), 1)[-1]
    scores = [given.accuracy(task, theta) for theta in server.members]
    assert scores == pytest.approx(server.descent.score.tolist())
    assert given.accuracy(task, server.theta) == pytest.approx(max(scores))
    assert all(s >= given.accuracy(task, t) for s, t in zip(scores, server.descent.theta, strict=True))


def test_without_validation_points_the_step_of_the_lowest_objective_may_be_kept(exchange):
    task, local = given.task(given.mlp(), (5,)), sgd.Solver(lr=0.1, batch_size=10)

    def members(steps, keep):
        method = fedbens.Method(members=2, structure="diag", steps=steps, lr=1.0, keep=keep)
        fed = toy.federation(method, local, task, exchange)
        found = toy.iterate(fed, 1)[-1]
        return method._objective(found.members, sent(fed, found.members)), found.descent.score

    value, score = members(12, "lowest")
    close(-score, value)
    path = torch.stack([members(steps, "validation")[0] for steps in range(1, 12)])
    assert bool((path[-1] > value + 1).all()), "the last step is not the best"
    assert bool((value <= path.amin(0) + 1e-9).all())
    assert bool(((value - path).abs().amin(0) < 1e-9).any())


def test_kron_refuses_normalisation_layers_and_names_the_way_out():
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(64, 3))
    task = given.task(module, (1, 6, 6))
    with pytest.raises(ValueError, match=r"'1' is a GroupNorm.*use the diagonal"):
        fedbens.Method().init_server(task)
    for structure in ("diag", "last"):
        fedbens.Method(structure=structure).init_server(task)


def test_what_a_client_would_send_at_once_is_counted(exchange):
    task = toy.task()
    fed = toy.federation(fedbens.Method(members=2, mixtures=[1, 1, 1, 1, 2], steps=1), exact.Solver(), task, exchange)
    _, report = fed.round(fed.method.init_server(task), 0)
    assert report.bytes_up == 8 * (4 + 1 + 16) * 6 / 5  # mode, factors of 1 and 4; six components


def test_a_mixture_is_sent_once_and_by_those_who_are_here(exchange):
    task = toy.task()
    method = fedbens.Method(members=1, steps=1, join=[1], leave=[0])
    fed = toy.federation(method, exact.Solver(), task, exchange)
    server, sent = method.init_server(task), []
    for number in range(3):
        server, report = fed.round(server, number)
        sent.append(report.bytes_up * toy.K)
    one = 8 * (4 + 1 + 16)
    assert sent == pytest.approx([4 * one, one, 0])  # all but the one that comes; that one; nobody


def test_of_an_even_number_the_lower_median_is_torchs():
    modes = torch.randn(4, 2, 6, generator=stream(2), dtype=torch.float64)
    found = medians(modes, torch.full((4, 2), 0.5, dtype=torch.float64), 2, lower=True)
    assert torch.equal(found, modes.median(dim=0).values)


def test_a_clipped_descents_first_step_is_adams_on_the_clipped_gradient(exchange):
    """With one step from the medians, Adam divides the clipped gradient by itself + eps: small clips make eps show."""
    task, local = given.task(given.mlp(), (5,)), sgd.Solver(lr=0.1, batch_size=10)
    found = {}
    for clip in (0.0, 1e-7):
        method = fedbens.Method(members=2, structure="diag", steps=1, lr=0.05, clip=clip)
        found[clip] = toy.iterate(toy.federation(method, local, task, exchange), 1)[-1]
    for member in range(2):
        gradient = 10 * found[0.0].descent.moments[0][member]  # after one step: (1 - beta1) g
        scale = 1e-7 / (gradient.norm() + 1e-6)
        clipped = gradient * scale
        start = found[0.0].members[member] + 0.05 * gradient / (gradient.abs() + 1e-8)
        close(found[1e-7].members[member], start - 0.05 * clipped / (clipped.abs() + 1e-8), 1e-6)
    assert (found[0.0].members - found[1e-7].members).abs().max() > 1e-3
