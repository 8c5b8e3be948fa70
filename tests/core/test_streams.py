"""What the three kinds of streams make of a run: whose noise and whose order of examples are alike."""

from dataclasses import replace

import pytest
import torch

from fedddp.clients.cohort import Cohort
from fedddp.clients.oracle import Oracle
from fedddp.core.data import Dataset, Examples
from fedddp.core.objective import CrossEntropy
from fedddp.core.rng import STREAMS, Streams
from fedddp.core.shards import Shards
from tests import toy

CLASSES = 5


def cohorts(kind, sizes, number, ids=None, ordered=True):
    """Clients with as many examples of each class; a client's examples are ordered by class, or not."""
    generator = torch.Generator().manual_seed(0)
    labels = []
    for size in sizes:
        own = torch.arange(CLASSES).repeat_interleave(size // CLASSES)
        labels.append(own if ordered else own[torch.randperm(size, generator=generator)])
    targets = torch.cat(labels)
    examples = Examples(torch.arange(len(targets), dtype=torch.float64).unsqueeze(1), targets)
    task = toy.task()
    task = replace(
        task,
        data=Dataset(examples, examples, CLASSES),
        objective=CrossEntropy(),
        shards=Shards.of(list(torch.arange(len(targets)).split(list(sizes)))),
        streams=Streams(0, kind),
    )
    ids = range(len(sizes)) if ids is None else ids
    return Cohort(tuple(ids), number, task, Oracle(task.module, task.layout, task.objective))


def labels(cohort, batch_size=4):
    return torch.cat([batch.targets for batch in cohort.batches(2, batch_size)], dim=1)


def noise(cohort):
    return cohort.noise().fill(torch.empty(len(cohort), 7))


def test_independent_clients_share_nothing():
    cohort = cohorts("independent", (40, 40), 0)
    assert not torch.equal(*labels(cohort))
    assert not torch.equal(*noise(cohort))


@pytest.mark.parametrize("kind", ["common", "frozen"])
def test_equal_clients_see_the_same_labels_and_noise_at_every_step(kind):
    cohort = cohorts(kind, (40, 40, 40), 2)
    for rows in (labels(cohort), noise(cohort)):
        assert torch.equal(rows[0], rows[1])
        assert torch.equal(rows[1], rows[2])


def test_common_draws_are_new_in_every_round_and_frozen_ones_never():
    def draws(kind, number):
        cohort = cohorts(kind, (40, 40), number)
        return labels(cohort), noise(cohort)

    for first, second in zip(draws("common", 0), draws("common", 1), strict=True):
        assert not torch.equal(first, second)
    for first, second in zip(draws("frozen", 0), draws("frozen", 1), strict=True):
        assert torch.equal(first, second)


def test_noise_and_order_are_separate_streams_and_every_epoch_has_a_new_order():
    cohort = cohorts("frozen", (40,), 0)
    first, second = labels(cohort).view(2, -1)
    assert not torch.equal(first, second)
    assert cohort.task.streams.key("noise", 0, 0) != cohort.task.streams.key("order", 0, 0)


@pytest.mark.parametrize("ordered", [True, False])
def test_common_aligns_classes_of_clients_of_other_sizes_and_orders(ordered):
    cohort = cohorts("common", (1000, 500), 3, ordered=ordered)
    larger, smaller = (next(iter(cohort.batches(1, 400))).targets[row] for row in (0, 1))
    assert (larger == smaller).double().mean() > 0.85
    own = cohorts("independent", (1000, 500), 3, ordered=ordered)
    larger, smaller = (next(iter(own.batches(1, 400))).targets[row] for row in (0, 1))
    assert (larger == smaller).double().mean() < 0.4


@pytest.mark.parametrize("kind", STREAMS)
def test_an_epoch_is_every_example_once_in_any_kind(kind):
    cohort = cohorts(kind, (45, 40, 15), 1, ordered=False)
    seen = [[], [], []]
    for batch in cohort.batches(1, 7):
        for row in range(len(batch.inputs)):
            used = slice(None) if batch.weights is None else batch.weights[row] > 0
            seen[row] += batch.inputs[row, used].flatten().tolist()
    for row, client in enumerate(cohort.ids):
        assert sorted(seen[row]) == cohort.task.shards.of_client(client).tolist()
        alone = cohorts(kind, (45, 40, 15), 1, ids=[client], ordered=False)
        first = next(iter(alone.batches(1, 7))).inputs[0].flatten().tolist()
        assert seen[row][: len(first)] == first
