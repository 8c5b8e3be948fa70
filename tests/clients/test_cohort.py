"""Cohorts: every example once an epoch, ragged clients as prefixes, vmap = loop, any width."""

from dataclasses import replace

import pytest
import torch

from fedddp.clients.cohort import Cohort
from fedddp.clients.oracle import Oracle
from fedddp.config import loading as configuration
from fedddp.core.params import refuse_batch_norm
from fedddp.local import sgd
from fedddp.runs.build import make_federation, make_task
from tests import toy
from tests.small import MODELS, settings


def cohort(task, ids=None, vectorise=True, round_=0):
    ids = ids or tuple(sorted(range(toy.K), key=lambda k: (-toy.SIZES[k], k)))
    return Cohort(ids, round_, task, Oracle(task.module, task.layout, task.objective, vectorise))


@pytest.mark.parametrize("batch_size", [1, 4, 7, 100])
def test_an_epoch_sees_every_example_once(batch_size):
    task = toy.task()
    together = cohort(task)
    seen = {client: [] for client in together.ids}
    working = []
    for batch in together.batches(epochs=2, batch_size=batch_size):
        working.append(len(batch.inputs))
        for row, client in enumerate(together.ids[: len(batch.inputs)]):
            used = slice(None) if batch.weights is None else batch.weights[row] > 0
            seen[client] += [tuple(x.tolist()) for x in batch.inputs[row][used]]
    assert working == sorted(working, reverse=True)
    for client in together.ids:
        own = [tuple(x.tolist()) for x in task.data.train.inputs[task.shards.of_client(client)]]
        assert sorted(seen[client]) == sorted(own * 2)
        assert seen[client][: len(own)] != seen[client][len(own) :], "epochs must differ in order"


def test_batches_do_not_depend_on_the_company():
    task = toy.task()
    together, alone = cohort(task), cohort(task, ids=(3,))
    row = together.ids.index(3)
    for a, b in zip(together.batches(2, 7), alone.batches(2, 7), strict=False):
        if row < len(a.inputs):
            real = b.targets[0] if b.weights is None else b.targets[0][b.weights[0] > 0]
            assert torch.equal(a.targets[row][: len(real)], real)


def test_full_grad_is_the_gradient_of_the_sum_loss():
    task = toy.task()
    theta = torch.randn(toy.K, toy.D, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    together = cohort(task)
    got = together.full_grad(theta)
    for row, client in enumerate(together.ids):
        hessian, shift = toy.gram(task, client)
        torch.testing.assert_close(got[row], hessian @ theta[row] - shift, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("solver", ["sgd", "adam"])
def test_vmap_equals_loop_and_any_width(exchange, model, solver):
    """The server after two rounds, float64, to 1e-10."""
    states = []
    for width, vectorise in [(1, False), (7, False), (7, True), (3, True), (2, True)]:
        words = settings("federated_admm", *MODELS[model], "federation.dtype=float64", f"local.name={solver}")
        words += ["local.eps=0.01"] if solver == "adam" else []  # with 1e-8 Adam blows up rounding at dead weights
        words += [f"federation.cohort_width={width}", f"federation.vectorise={vectorise}", "local.lr=0.01"]
        config = configuration.load(None, words)
        fed = make_federation(config, make_task(config, torch.device("cpu")), exchange)
        states.append(toy.iterate(fed, 2)[-1])
    for state in states[1:]:
        torch.testing.assert_close(state.theta, states[0].theta, rtol=1e-10, atol=1e-10)
        torch.testing.assert_close(state.duals, states[0].duals, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("solver", ["sgd", "adam"])
@pytest.mark.parametrize(
    "extra", [{}, {"weight_decay": 0.1}, {"momentum": 0.9, "nesterov": True}, {"decoupled": True, "weight_decay": 0.1}]
)
def test_solvers_step_as_torch_does(solver, extra):
    """One client, full batches: the same iterates as torch.optim."""
    from fedddp.core.registry import find

    known = {"sgd": ("weight_decay", "momentum", "nesterov"), "adam": ("weight_decay", "decoupled")}[solver]
    if not set(extra) <= set(known):
        pytest.skip(f"{solver} has no {', '.join(set(extra) - set(known))}")
    task = toy.task(sizes=(12,))
    local = find("local", solver)(lr=0.05, epochs=5, batch_size=12, **extra)
    fit = local.minimise(cohort(task, ids=(0,)), task.initial, local.memory(task, 1))
    theta = task.initial.clone().requires_grad_()
    options = {k: v for k, v in extra.items() if k != "decoupled"}
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.AdamW if "decoupled" in extra else torch.optim.Adam}[solver]
    optimiser = kind([theta], lr=0.05, **options)
    hessian, shift = toy.gram(task, 0)
    for _ in range(5):
        theta.grad = ((hessian @ theta - shift) / 12).detach()
        optimiser.step()
    torch.testing.assert_close(fit.theta[0], theta.detach(), rtol=1e-10, atol=1e-12)


def test_kept_state_goes_on_where_it_was():
    """Two rounds of one epoch with kept moments = one round of two epochs, for a client with one batch."""
    from fedddp.local import adam

    task = toy.task(sizes=(12,))
    kept = adam.Solver(lr=0.05, epochs=1, batch_size=12, keep=True)
    first = kept.minimise(cohort(task, ids=(0,)), task.initial, kept.memory(task, 1))
    second = kept.minimise(cohort(task, ids=(0,), round_=1), first.theta, first.memory)
    once = replace(kept, epochs=2).minimise(cohort(task, ids=(0,)), task.initial, kept.memory(task, 1))
    torch.testing.assert_close(second.theta, once.theta, rtol=1e-12, atol=1e-12)
    assert second.memory.taken.tolist() == [2.0]


def test_clipping_bounds_every_clients_gradient():
    from fedddp.local import sgd

    task = toy.task(sizes=(12, 12))
    local = sgd.Solver(lr=1.0, epochs=1, batch_size=12, clip=0.01)
    fit = local.minimise(cohort(task, ids=(0, 1)), task.initial, local.memory(task, 2))
    torch.testing.assert_close((fit.theta - task.initial).norm(dim=1), torch.full((2,), 0.01, dtype=torch.float64))


def test_batch_norm_is_refused():
    with pytest.raises(ValueError, match=r"layer '1' is a BatchNorm1d.*use GroupNorm"):
        refuse_batch_norm(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)))


def test_the_loss_without_a_gradient():
    task = toy.task()
    together = cohort(task)
    generator = torch.Generator().manual_seed(0)
    theta = torch.randn(len(together), task.layout.numel, dtype=torch.float64, generator=generator)
    for row, client in enumerate(together.ids):
        hessian, shift = toy.gram(task, client)
        index = task.shards.of_client(client)
        constant = 0.5 * task.data.train.targets[index].square().sum()
        expected = 0.5 * theta[row] @ hessian @ theta[row] - theta[row] @ shift + constant
        torch.testing.assert_close(together.full_loss(theta)[row], expected, rtol=1e-12, atol=0)
    total = torch.zeros(len(together), dtype=torch.float64)
    for batch in together.batches(1, 7):  # short last batches too
        rows = len(batch.inputs)
        count = batch.targets.shape[1] if batch.weights is None else batch.weights.sum(1)
        total[:rows] += together.loss(theta[:rows], batch) * count
    torch.testing.assert_close(total, together.full_loss(theta), rtol=1e-12, atol=0)
    assert not theta.requires_grad
    assert together.seen().steps.sum() == 0, "it is not what clients train on"


def test_members_have_streams_of_their_own_and_their_losses_count():
    task = toy.task()
    together = cohort(task)
    rows = torch.tensor([0, 2])
    solver = sgd.Solver(lr=0.01, epochs=2, batch_size=4)
    start = task.initial
    first, second = (together.part(rows, member) for member in (0, 1))
    alone = cohort(task, ids=tuple(together.ids[row] for row in rows.tolist()))
    fits = [solver.minimise(part, start, solver.memory(task, 2)).theta for part in (first, second, alone)]
    assert torch.equal(fits[0], fits[2]), "member 0 is the client itself"
    assert not torch.equal(fits[0], fits[1]), "another order"
    seen = together.seen()
    torch.testing.assert_close(seen.loss[rows], first.seen().loss + second.seen().loss)
    assert torch.equal(seen.steps[rows], 2 * alone.seen().steps)
    assert seen.steps.sum() == seen.steps[rows].sum()


def test_a_turned_gradient_is_what_a_solver_sees():
    task = toy.task()
    plain, turned = cohort(task), cohort(task)
    doubled = turned.steered(lambda theta, grad, batch: 2 * grad)
    half, whole = (sgd.Solver(lr=lr, batch_size=5) for lr in (0.01, 0.02))
    a = half.minimise(doubled, task.initial, half.memory(task, len(plain))).theta
    b = whole.minimise(plain, task.initial, whole.memory(task, len(plain))).theta
    torch.testing.assert_close(a, b, rtol=1e-12, atol=0)
    assert torch.equal(turned.seen().steps, plain.seen().steps)
