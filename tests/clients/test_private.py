"""Clipped gradients against one example at a time; batches and noise as they are accounted for."""

from dataclasses import replace

import pytest
import torch

from fedddp.clients.oracle import Oracle
from fedddp.clients.private import Guard, PrivateCohort, guarded
from fedddp.core.rng import Streams
from fedddp.rounds import accounting
from fedddp.rounds.method import Method
from tests import toy
from tests.methods import given
from tests.rounds.test_privacy import lower_bound


def by_hand(task, theta, client, clip):
    """Σ_i g_i min(1, clip/|g_i|), by plain autograd."""
    oracle, total = Oracle(task.module, task.layout, task.objective, vectorise=False), torch.zeros_like(theta)
    for index in task.shards.of_client(client).tolist():
        inputs, targets = task.data.train.inputs[None, [index]], task.data.train.targets[None, [index]]
        own = oracle(theta[None], inputs, targets)[0][0]
        total += own * min(1.0, clip / float(own.norm()))
    return total


@pytest.mark.parametrize("model", ["mlp", "without biases", "lenet"])
@pytest.mark.parametrize("clip", [1e-3, 0.7, 1e3])
def test_sums_of_clipped_gradients_are_those_of_single_examples(model, clip):
    module, shape = (given.lenet(), (1, 10, 10)) if model == "lenet" else (given.mlp(model == "mlp"), (5,))
    task = given.task(module, shape)
    theta = given.around(task)
    oracle = Oracle(task.module, task.layout, task.objective)
    assert (oracle.chain is None) == (model == "lenet")
    index = torch.stack(
        [task.shards.of_client(k)[torch.arange(30).clamp_max(n - 1)] for k, n in enumerate((20, 30, 25))]
    )
    real = (torch.arange(30) < torch.tensor([[20], [30], [25]])).double()
    grad, _ = oracle.clipped(theta, task.data.train.inputs[index], task.data.train.targets[index], real, clip)
    for client in range(3):
        torch.testing.assert_close(grad[client], by_hand(task, theta[client], client, clip), rtol=1e-9, atol=1e-12)


def test_without_clipping_the_sum_is_the_plain_gradient():
    task = given.task(given.mlp(), (5,))
    theta, oracle = given.around(task), Oracle(task.module, task.layout, task.objective)
    index = torch.stack([task.shards.of_client(client)[:20] for client in range(3)])
    examples = task.data.train.inputs[index], task.data.train.targets[index]
    grad, loss = oracle.clipped(theta, *examples, None, 1e9)
    plain, mean = oracle(theta, *examples)
    torch.testing.assert_close(grad / 20, plain)
    torch.testing.assert_close(loss, mean)


def cohort(guard, ids=(3, 1), round_=0):
    task = toy.task()
    return guarded(guard)(ids, round_, task, Oracle(task.module, task.layout, task.objective))


def test_no_guard_is_the_plain_cohort():
    assert type(cohort(None)) is not PrivateCohort


def test_the_noise_has_the_deviation_that_is_accounted_for():
    made, drawn = cohort(Guard(clip=0.5, noise=3.0)), []
    for batch in made.batches(400, 10):
        rows = len(batch.inputs)
        theta = torch.zeros(rows, toy.D, dtype=torch.float64)
        grad = made.grad(theta, batch)
        silent = made.oracle.clipped(theta, batch.inputs, batch.targets, batch.weights, 0.5)[0]
        drawn.append((grad * 10 - silent).flatten())
    z = torch.cat(drawn) / (3.0 * 0.5)
    assert abs(float(z.mean())) < 5 / len(z) ** 0.5
    assert abs(float(z.var()) - 1) < 5 * (2 / len(z)) ** 0.5


@pytest.mark.parametrize("weighted", [False, True])
def test_a_step_taken_by_the_products_is_the_step_with_a_gradient(weighted):
    task = given.task(given.mlp(), (5,))
    theta, lr = given.around(task), 0.3

    def stepped(by_gradient):
        made = guarded(Guard(clip=0.1, noise=0.5))((0, 1, 2), 0, task, Oracle(task.module, task.layout, task.objective))
        batch = next(batch for batch in made.batches(1, 16) if (batch.weights is not None) == weighted)
        moved = theta[: len(batch.inputs)].clone()
        if by_gradient:
            moved -= lr * made.grad(moved, batch)
        else:
            assert made.lower(moved, batch, lr)
        return moved, made.counted.loss

    for one, two in zip(stepped(True), stepped(False), strict=True):
        torch.testing.assert_close(one, two)


def test_copies_of_a_cohort_never_use_the_same_noise():
    made = cohort(Guard(clip=1.0, noise=1.0))
    one, two = (made.steered(lambda theta, grad, batch: grad) for _ in range(2))
    batch, theta = next(made.batches(1, 10)), torch.zeros(2, toy.D, dtype=torch.float64)
    next(one.batches(1, 10)), next(two.batches(1, 10))
    assert not (one.grad(theta, batch) == two.grad(theta, batch)).any()


def test_clients_and_rounds_have_noise_of_their_own_and_it_comes_again():
    keys = {
        (round_, client): key
        for round_ in (0, 1)
        for client, key in zip((3, 1), cohort(Guard(1, 1), round_=round_).keys("privacy"), strict=True)
    }
    assert len(set(keys.values())) == 4
    assert cohort(Guard(1, 1)).keys("privacy") == [keys[0, 3], keys[0, 1]]
    system = [cohort(Guard(1, 1, system=True)) for _ in range(2)]
    assert not {*system[0]._noise.keys} & {*system[1]._noise.keys}
    assert system[0].keys("order") != system[0].keys("order")


def test_poisson_batches_have_each_example_with_the_same_probability():
    made = cohort(Guard(1, 1, poisson=True))
    plan = made._schedule(epochs=300, batch_size=6)
    table, real = plan.table, torch.tensor(plan.counts)
    for row, client in enumerate(made.ids):
        own, steps = made.task.shards.of_client(client), int(made.steps(300, 6)[row])
        counts = torch.zeros(len(own))
        for step in range(steps):
            batch = table[step, row, : real[step, row]]
            assert len(batch.unique()) == len(batch)
            counts[torch.searchsorted(own.sort().values, batch)] += 1
        share = 6 / len(own)
        assert ((counts / steps - share).abs() < 5 * (share * (1 - share) / steps) ** 0.5).all()
        assert (real[steps:, row] == 0).all()


def test_a_batch_without_examples_is_noise_alone():
    made = cohort(Guard(clip=1.0, noise=1.0, poisson=True), ids=(0,))
    empty = [batch for batch in made.batches(200, 1) if batch.counts is not None and batch.counts[0] == 0]
    assert empty
    grad = made.grad(torch.zeros(1, toy.D, dtype=torch.float64), empty[0])
    assert grad.isfinite().all()


@pytest.mark.parametrize("look", ["full_grad", "full_loss"])
def test_nothing_else_may_look_at_examples(look):
    made = cohort(Guard(1, 1))
    with pytest.raises(ValueError, match=r"privacy.level=example: this method or solver looks"):
        getattr(made, look)(torch.zeros(2, toy.D, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"privacy.level=example"):
        next(made.everything())


def test_a_method_is_not_private_unless_it_says_so():
    assert not Method.by_solver


def test_a_canary_among_examples_is_told_apart_no_better_than_epsilon_allows():
    """An example that pulls as far as it may, there or with no gradient: a threshold on a step's noisy gradient.

    Every step of whole batches is a release of its own, at the same parameters.
    """
    delta, runs = 1e-2, 5_000
    claimed = accounting.of_examples("fixed", [1], 1, 1, 1, delta, "pld").epsilon(1.0, 1)

    def released(pull, noise, seed):
        task = toy.task(sizes=(1,), dims=1)
        task.data.train.targets.fill_(pull)
        made = replace(
            guarded(Guard(clip=1.0, noise=noise))((0,), 0, task, Oracle(task.module, task.layout, task.objective)),
            task=replace(task, streams=Streams(seed)),
        )
        theta = torch.zeros(1, 1, dtype=torch.float64)
        return torch.cat([made.grad(theta, batch)[0] for batch in made.batches(runs, 1)])

    def best(noise):
        there, away = released(1e6, noise, 1), released(0.0, noise, 2)
        there = there * there.mean().sign()
        return max(lower_bound(there, away, at, delta) for at in torch.linspace(-1, 3, 41).tolist())

    assert 0.6 * claimed < best(1.0) <= claimed
    assert best(0.5) > claimed  # half of the noise is caught
