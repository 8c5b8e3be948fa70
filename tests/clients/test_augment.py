"""Random crops and flips: exactly the windows of the padded picture, keyed by client, round and step alone."""

from dataclasses import replace

import pytest
import torch

from fedddp.clients.augment import PAD, Crops, cut
from fedddp.clients.cohort import Cohort
from fedddp.clients.oracle import Oracle
from fedddp.config import loading as configuration
from fedddp.core.data import Examples
from fedddp.data import mnist
from fedddp.local import sgd
from fedddp.rounds.fit_cache import name_of
from fedddp.runs.build import make_task


def digits(augment=False):
    settings = ["federation.dtype=float64", "data.test_fraction=0.5", "model.name=logistic"]
    task = make_task(configuration.load("digits", settings), torch.device("cpu"))
    train = task.data.train
    pictures = replace(train, inputs=train.inputs.reshape(-1, 8, 8))
    return replace(task, data=replace(task.data, train=pictures, augment=augment))


def cohort(task, ids, round_=0):
    ordered = tuple(sorted(ids, key=lambda k: -int(task.num_examples[k])))
    return Cohort(ordered, round_, task, Oracle(task.module, task.layout, task.objective))


def test_a_cut_is_a_window_of_the_padded_picture():
    """Written out with torch's own padding; black is another number in each channel."""
    pictures = torch.randn(7, 3, 6, 5, generator=torch.Generator().manual_seed(0))
    black = torch.tensor([-1.0, 2.0, 0.5]).view(3, 1, 1).expand(3, 6, 5)
    down, right = torch.tensor([0, 8, 4, 1, 7, 3, 2]), torch.tensor([8, 0, 4, 2, 5, 6, 1])
    mirrored = torch.tensor([0, 1, 0, 1, 1, 0, 0])
    found = cut(pictures, down, right, mirrored, black)
    for i in range(len(pictures)):
        whole = torch.stack([torch.nn.functional.pad(p, [PAD] * 4, value=float(b)) for p, b in zip(
            pictures[i], (-1.0, 2.0, 0.5), strict=True)])  # fmt: skip
        window = whole[:, down[i] : down[i] + 6, right[i] : right[i] + 5]
        assert torch.equal(found[i], window.flip(-1) if mirrored[i] else window)


def test_crops_depend_on_client_round_and_step_alone():
    """Not on who is computed beside; each round and step has its own, and about half are mirrored."""
    task = digits(augment=True)
    assert task.data.augment
    largest = int(task.num_examples.argmax())
    alone = [b.inputs[0].clone() for b in cohort(task, [largest]).batches(2, 16)]
    beside = [b.inputs[0].clone() for b in cohort(task, range(task.num_clients)).batches(2, 16)]
    later = [b.inputs[0].clone() for b in cohort(task, [largest], 1).batches(2, 16)]
    assert all(torch.equal(one, other) for one, other in zip(alone, beside, strict=True))
    assert not torch.equal(alone[0], later[0])
    crops = Crops(task, torch.arange(40))
    there = torch.arange(64.0, dtype=torch.float64).view(8, 8).expand(40, 50, 8, 8)
    one, two = crops(there, 0), crops(there, 1)
    assert not torch.equal(one, two)
    middle = one[(one[..., 3, 3] > 0) & (one[..., 3, 4] > 0)]
    assert 0.45 < float((middle[:, 3, 3] > middle[:, 3, 4]).double().mean()) < 0.55


def test_the_setting_is_of_pictures():
    with pytest.raises(ValueError, match=r"data.augment.*none or crops"):
        mnist.Source(augment="flips")
    rows = Examples(torch.zeros(4, 8), torch.zeros(4, dtype=torch.int64))
    with pytest.raises(ValueError, match="needs pictures"):
        mnist.Source(augment="crops").dataset(rows, rows, 2)


def test_without_it_and_for_curvature_pictures_stay_as_they_are():
    plain, cropped = digits(), digits(augment=True)
    for one, other in zip(cohort(plain, [0]).everything(), cohort(cropped, [0]).everything(), strict=True):
        assert torch.equal(one.inputs, other.inputs)
    (off,), (on,) = ([next(iter(cohort(task, [0]).batches(1, 16)))] for task in (plain, cropped))
    assert torch.equal(off.targets, on.targets)
    assert not torch.equal(off.inputs, on.inputs)
    same = replace(cropped, data=replace(cropped.data, augment=False))
    assert torch.equal(next(iter(cohort(same, [0]).batches(1, 16))).inputs, off.inputs)


def test_a_cached_fit_of_whole_pictures_is_another():
    plain, cropped = digits(), digits(augment=True)
    names = {name_of(sgd.Solver(), cohort(task, [0]), task.initial) for task in (plain, cropped)}
    assert len(names) == 2
