"""`fedddp check` of splits, data sources and models."""

import pytest

from tests.checks.test_check import failed, rows, write
from tests.forked import fedddp

SPLIT = """
    import torch
    from typing import ClassVar
    from fedddp.core.shards import Split

    class Mine(Split):
        {repeats}
        def deal(self, examples, generator):
            order = torch.randperm(len(examples), generator={generator})
            return [{first}, *order.tensor_split(4)]
"""
DATA = """
    import torch
    from fedddp.core.data import Dataset, Examples, Source

    class Mine(Source):
        def load(self):
            generator = torch.Generator().manual_seed(1)
            inputs, targets = torch.rand(60, 5, generator=generator), torch.arange(60) % 3
            {change}
            return Dataset(Examples(inputs[:40], targets[:40]), Examples(inputs[40:], targets[40:]), classes=3)
"""
MODEL = """
    import torch
    from math import prod
    from torch import nn
    from fedddp.core.model import Model

    class Noisy(nn.Module):
        def forward(self, x):
            return x + torch.randn_like(x)

    class Mixes(nn.Module):
        def forward(self, x):
            return x - x.mean(0)

    class Mine(Model):
        def build(self, shape, outputs):
            return nn.Sequential(nn.Flatten(), nn.Linear(prod(shape), outputs), {last})
"""


@pytest.mark.parametrize("words", [["dirichlet"], ["resample"], ["classes", "split.clients=20"], ["digits"]])
def test_our_own_parts_hold(words):
    done = fedddp("check", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {outcome for outcome, _ in rows(done).values()} == {"ok"}


@pytest.mark.parametrize(
    ("change", "broken", "said"),
    [
        ({}, set(), ""),
        ({"first": "order[:1]"}, {"each example once"}, "1 examples are dealt more than once"),
        ({"first": "order[:1]", "repeats": "repeats: ClassVar[bool] = True"}, set(), ""),
        ({"first": "order[:0]"}, {"deals"}, "client 0 of 5 has 0 examples, fewer than 1"),
        ({"first": "torch.tensor([10**6])"}, {"indices in range"}, "indices 0..1000000, but"),
        ({"generator": "None"}, {"the seed alone decides"}, "draw from the generator that deal() is given"),
    ],
)
def test_a_split_of_ones_own(tmp_path, change, broken, said):
    usual = {"repeats": "", "generator": "generator", "first": "*order[:0].split(1)[1:]"}
    done = fedddp("check", write(tmp_path, SPLIT.format(**usual | change)), "split.minimum=1", cwd=tmp_path)
    assert done.returncode == (1 if broken else 0), done.stdout + done.stderr
    assert failed(done) == broken
    for name in broken:
        assert said in rows(done)[name][1]


@pytest.mark.parametrize(
    ("change", "broken", "said"),
    [
        ("pass", "", ""),
        ("inputs = inputs + torch.rand(60, 5)", "same at every call", "train.inputs differs when loaded a second time"),
        ("inputs[50, 2] = torch.inf", "finite", "test.inputs[10] is not finite"),
        ("targets[3] = 3", "targets", "train.targets: 0..3, outside 0..2"),
        ("targets = targets.float()", "targets", "train.targets: are torch.float32 for 3 classes"),
        ("inputs = inputs[:40]", "loads", "test: 0 inputs beside 20 targets"),
    ],
)
def test_a_data_source_of_ones_own(tmp_path, change, broken, said):
    done = fedddp("check", write(tmp_path, DATA.format(change=change)), cwd=tmp_path)
    assert done.returncode == (1 if broken else 0), done.stdout + done.stderr
    assert failed(done) == ({broken} if broken else set())
    assert not broken or said in rows(done)[broken][1]


@pytest.mark.parametrize(
    ("last", "broken", "said"),
    [
        ("nn.Identity()", "", ""),
        ("nn.BatchNorm1d(outputs)", "builds", "is a BatchNorm1d, whose running statistics"),
        ("nn.Linear(outputs, 3)", "outputs", "[5, 3] for 5 inputs, instead of [5, 10]"),
        ("Mixes()", "outputs", "alone and beside others differ"),
        ("Noisy()", "outputs", "differ when asked again"),
    ],
)
def test_a_model_of_ones_own(tmp_path, last, broken, said):
    done = fedddp("check", write(tmp_path, MODEL.format(last=last)), "--ranks", 2, cwd=tmp_path)
    assert done.returncode == (1 if broken else 0), done.stdout + done.stderr
    assert {broken} - {""} <= failed(done)
    assert not broken or said in rows(done)[broken][1]
