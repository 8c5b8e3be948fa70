"""Test parts of clients, and clients that never train."""

from dataclasses import replace

import pytest
import torch

from fedddp.config import loading as configuration
from fedddp.core.data import Dataset, Examples
from fedddp.core.shards import Shards
from fedddp.evaluation.parts import Parts, dealt_numbers, hold_out
from fedddp.runs.build import make_task
from tests import toy
from tests.small import settings

CPU = torch.device("cpu")


def task(counts: list[list[int]], test: list[int], train_clients=None, test_clients=None):
    """Clients with so many examples of each class, and a test set with so many."""
    labels = [torch.arange(len(row)).repeat_interleave(torch.tensor(row)) for row in counts]
    targets, tested = torch.cat(labels), torch.arange(len(test)).repeat_interleave(torch.tensor(test))
    inputs = torch.zeros(len(targets), 1), torch.zeros(len(tested), 1)
    data = Dataset(
        Examples(inputs[0], targets, train_clients), Examples(inputs[1], tested, test_clients), classes=len(test)
    )
    shards = Shards.of(list(torch.arange(len(targets)).split([sum(row) for row in counts])))
    return replace(toy.task(), data=data, shards=shards)


def test_a_part_has_the_clients_share_of_each_class_and_no_example_is_lost():
    counts, test = [[10, 0, 30], [30, 50, 30], [0, 50, 60]], [40, 100, 60]
    parts = Parts.of(task(counts, test), 3)
    classes = torch.arange(3).repeat_interleave(torch.tensor(test))
    held = torch.stack([torch.bincount(classes[parts.of_client(k)], minlength=3) for k in range(3)])
    assert held.tolist() == [[10, 0, 15], [30, 50, 15], [0, 50, 30]]
    assert sorted(torch.cat([parts.of_client(k) for k in range(3)]).tolist()) == list(range(200))
    assert parts.sizes.tolist() == [25, 95, 80]
    assert Parts.of(task(counts, test), 3).digest == parts.digest != Parts.of(task(counts, test), 4).digest


def test_a_class_that_nobody_trains_on_is_in_no_part():
    parts = Parts.of(task([[5, 0], [5, 0]], [4, 3]), 0)
    assert parts.sizes.tolist() == [2, 2]
    assert int((parts.owner < 0).sum()) == 3


def test_natural_clients_keep_their_test_examples():
    owner, tested = torch.tensor([7, 7, 7, 2, 2, 9]), torch.tensor([2, 9, 9, 4, 7])
    parts = Parts.of(task([[2, 1], [1, 1], [0, 1]], [3, 2], owner, tested), 0)
    assert parts.owner.tolist() == [1, 2, 2, -1, 0]  # nobody trains on client 4's


def test_where_a_split_mixes_natural_clients_parts_are_dealt():
    owner, tested = torch.tensor([7, 2, 7, 2, 2, 9]), torch.tensor([2, 9, 9, 4, 7])
    parts = Parts.of(task([[2, 1], [1, 1], [0, 1]], [3, 2], owner, tested), 0)
    assert bool((parts.owner >= 0).all())


def test_clients_that_never_train_are_drawn_by_the_splits_seed_and_keep_their_examples():
    shards = Shards.of(list(torch.arange(15).split([1, 2, 3, 4, 5])))
    trained, unseen = hold_out(shards, 2, 8)
    numbers = dealt_numbers(5, 2, 8).tolist()
    assert sorted(numbers) == [0, 1, 2, 3, 4]
    assert [part.tolist() for part in trained.beside(unseen)] == [shards.of_client(n).tolist() for n in numbers]
    assert numbers[:3] == sorted(numbers[:3])
    assert numbers[3:] == sorted(numbers[3:])
    same, none = hold_out(shards, 0, 8)
    assert same is shards
    assert len(none) == 0
    with pytest.raises(ValueError, match=r"split.unseen=5: leaves none of 5 clients"):
        hold_out(shards, 5, 8)


def test_a_task_knows_both():
    made = make_task(configuration.load(None, settings("fedavg", "split.unseen=2")), CPU)
    whole = make_task(configuration.load(None, settings("fedavg")), CPU)
    assert made.num_clients == whole.num_clients - 2
    assert made.everyone.num_clients == whole.num_clients
    assert sorted(made.everyone.order.tolist()) == sorted(whole.shards.order.tolist())
