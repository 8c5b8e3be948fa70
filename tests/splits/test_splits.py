"""What is particular to each split."""

import json

import numpy as np
import pytest
import torch
from torch import Tensor

from fedddp.core import registry
from fedddp.core.data import Examples
from fedddp.core.rng import stream
from fedddp.core.shards import Shards
from fedddp.splits import (
    balanced_dirichlet,
    class_dirichlet,
    classes,
    client_dirichlet,
    credit,
    dirichlet,
    fedbens,
    iid,
    lognormal,
    natural,
    resample,
    shards,
)
from fedddp.splits import file as from_file
from fedddp.splits._dealing import fill_up, log_dirichlet
from tests.splits.test_properties import deal, some

TEN = torch.arange(6000) % 10  # 600 points of each of ten classes


def table(parts: list[Tensor], targets: Tensor) -> Tensor:
    """[K, classes]"""
    return torch.stack([torch.bincount(targets[part], minlength=int(targets.max()) + 1) for part in parts])


def test_iid_sizes_differ_by_one_at_most():
    sizes = [len(part) for part in deal(iid.Split(clients=7), some(TEN))]
    assert max(sizes) - min(sizes) == 1


def test_dirichlet_with_a_large_alpha_is_even_in_size_and_class():
    even = deal(dirichlet.Split(alpha=1e15, size_alpha=1e15), some(TEN))
    assert torch.equal(table(even, TEN), torch.full((10, 10), 60))


def test_dirichlet_gives_the_sizes_of_the_paper():
    """App. E.1: usually 2 clients hold half of the data and 6 hold 90 %; 60-95 % of a client lies in 4 classes."""
    counts = torch.stack([table(deal(dirichlet.Split(), some(TEN), seed), TEN) for seed in range(40)])
    sizes = counts.sum(2).sort(descending=True).values.double() / len(TEN)
    top = counts.sort(dim=2, descending=True).values[:, :, :4].sum(2) / counts.sum(2).clamp_min(1)
    assert 0.4 < sizes[:, :2].sum(1).mean() < 0.6
    assert 0.85 < sizes[:, :6].sum(1).mean() < 0.98
    assert 0.6 < float(top.mean()) < 0.95


@pytest.mark.parametrize("seed", range(5))
def test_published_dealing(seed):
    """Consecutive runs of round(n_c · share), a count of 1 becomes 2, a client's data is ordered by class."""
    split = dirichlet.Split(dealing="published")
    parts = deal(split, some(TEN), seed)
    generator = stream(seed, "split")
    sizes = log_dirichlet(1.0, 1, 10, generator).exp()
    mixes = log_dirichlet(0.5, 10, 10, generator).exp()
    shares = sizes.T * mixes / (sizes.T * mixes).sum(0)
    wanted = (600 * shares).round().long()
    wanted[wanted == 1] = 2
    given = torch.minimum(wanted, (600 - wanted.cumsum(0) + wanted).clamp_min(0))  # the last ones may get fewer
    assert torch.equal(table(parts, TEN), given)
    assert 5900 < sum(map(len, parts)) <= 6000
    assert len(torch.cat(parts).unique()) == sum(map(len, parts))
    assert all(bool((TEN[part].diff() >= 0).all()) for part in parts)


def test_class_dirichlet_shares_each_class_by_its_own_draw():
    generator = stream(0, "split")
    shares = log_dirichlet(0.1, 10, 10, generator).exp()  # [classes, K]
    counts = table(deal(class_dirichlet.Split(minimum=0), some(TEN)), TEN)
    assert (counts - 600 * shares.T).abs().max() <= 1


def test_client_dirichlet_shares_classes_in_proportion_to_the_mixes():
    mixes = log_dirichlet(0.1, 5, 10, stream(0, "split")).exp()
    counts = table(deal(client_dirichlet.Split(minimum=0), some(TEN)), TEN)
    assert (counts - 600 * mixes / mixes.sum(0)).abs().max() <= 1


def test_balanced_dirichlet_has_equal_sizes_and_unequal_classes():
    parts = deal(balanced_dirichlet.Split(clients=100, alpha=0.1), some(TEN))
    counts = table(parts, TEN)
    assert set(counts.sum(1).tolist()) == {60}
    assert float((counts.max(1).values / 60).float().mean()) > 0.5


def test_balanced_dirichlet_with_coarse_classes_keeps_to_few_of_them():
    targets = torch.arange(6000) % 20
    parents = [c // 4 for c in range(20)]
    parts = deal(balanced_dirichlet.Split(clients=20, alpha=0.05, parents=parents), some(targets))
    coarse = table(parts, targets // 4)
    assert set(coarse.sum(1).tolist()) == {300}
    assert float((coarse.max(1).values / 300).float().mean()) > 0.6
    first = table(parts, targets)[:5].view(5, 5, 4)  # the first clients have everything to choose from
    assert bool(((first > 0).any(2) == (first > 0).all(2)).float().mean() > 0.8)  # all fine classes of a coarse one
    with pytest.raises(ValueError, match="a list of 20"):
        deal(balanced_dirichlet.Split(parents=[0, 1]), some(targets))


def test_shards_are_equal_and_of_different_classes():
    for seed in range(20):
        counts = table(deal(shards.Split(clients=10, shards=2), some(TEN), seed), TEN)
        assert torch.equal(counts.sum(1), torch.full((10,), 600))
        assert torch.equal((counts > 0).sum(1), torch.full((10,), 2))
    random = torch.cat([table(deal(shards.Split(distinct=False), some(TEN), s), TEN) for s in range(20)])
    assert 0 < int(((random > 0).sum(1) == 1).sum()) < 60  # now and then two of the same class


def test_classes_gives_each_client_so_many_points_of_so_many_classes():
    counts = table(deal(classes.Split(clients=100, classes=2, points=30), some(TEN)), TEN)
    assert torch.equal((counts == 30).sum(1), torch.full((100,), 2))
    assert torch.equal(counts.sum(1), torch.full((100,), 60))
    assert torch.equal((counts > 0).sum(0), torch.full((10,), 20))


def test_classes_gives_points_out_again_only_where_a_class_has_too_few():
    targets = torch.cat([torch.zeros(100), torch.ones(200), torch.full((200,), 2.0)]).long()
    parts = deal(classes.Split(clients=9, classes=2, points=30), some(targets))
    assert [len(part.unique()) for part in parts] == [60] * 9  # no point twice within a client
    times = torch.bincount(torch.cat(parts), minlength=500)
    assert times[:100].tolist() == [2] * 80 + [1] * 20 or sorted(times[:100].tolist()) == [1] * 20 + [2] * 80
    assert int(times[100:].max()) == 1


def test_classes_out_of_range():
    with pytest.raises(ValueError, match=r"split.classes=11: must be at most 10"):
        deal(classes.Split(classes=11), some(TEN))
    with pytest.raises(ValueError, match=r"split.points=601: must be at most 600"):
        deal(classes.Split(points=601), some(TEN))


def test_credit_split_of_the_paper():
    targets = (torch.arange(520) % 20 < 9).long()  # 45 % positive
    parts = deal(credit.Split(), some(targets))
    assert [len(part) for part in parts] == [36] * 5 + [67] * 5
    assert [int(targets[part].sum()) for part in parts] == [2] * 5 + [44] * 5
    assert len(torch.cat(parts).unique()) == 515


def test_lognormal_sizes_spread_as_asked():
    even = [len(part) for part in deal(lognormal.Split(clients=100, sigma=0.0), some(TEN))]
    spread = torch.tensor([len(part) for part in deal(lognormal.Split(clients=1000, sigma=0.5), some(TEN.repeat(50)))])
    assert set(even) == {60}
    assert abs(float(spread.double().log().std()) - 0.5) < 0.05


def test_natural_clients_kept_merged_and_cut():
    owner = torch.tensor([5, 5, 9, 9, 9, 2, 7, 7, 7, 7])
    examples = Examples(torch.zeros(10, 1), torch.zeros(10, dtype=torch.long), owner)
    assert [part.tolist() for part in deal(natural.Split(), examples)] == [[5], [0, 1], [6, 7, 8, 9], [2, 3, 4]]
    assert [part.tolist() for part in deal(natural.Split(minimum=3), examples)] == [[6, 7, 8, 9], [2, 3, 4]]
    assert [len(part) for part in deal(natural.Split(most=2), examples)] == [1, 2, 2, 2]
    kept = deal(natural.Split(keep=2), examples)
    assert len(kept) == 2
    merged = deal(natural.Split(merge=2), examples)
    assert len(merged) == 2
    assert torch.equal(torch.cat(merged).sort().values, torch.arange(10))
    for part in merged:  # clients stay whole
        assert all(bool(torch.isin((owner == owner[i]).nonzero().flatten(), part).all()) for i in part)
    with pytest.raises(ValueError, match="no natural clients"):
        deal(natural.Split(), Examples(torch.zeros(2, 1), torch.zeros(2, dtype=torch.long)))


def test_from_files(tmp_path):
    (tmp_path / "list.json").write_text(json.dumps([[0, 2], [5, 4]]))
    (tmp_path / "named.json").write_text(json.dumps({"ann": [0, 2], "bob": [5, 4]}))
    np.savez(tmp_path / "shards.npz", order=[0, 2, 5, 4], offsets=[0, 2, 4])
    np.savez(tmp_path / "owner.npz", owner=[0, -1, 0, -1, 1, 1])
    for name, second in [("list.json", [5, 4]), ("named.json", [5, 4]), ("shards.npz", [5, 4]), ("owner.npz", [4, 5])]:
        parts = deal(from_file.Split(path=str(tmp_path / name)), some([0] * 6))
        assert [part.tolist() for part in parts] == [[0, 2], second]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[[0, 6]]", "outside 0..5"),
        ("[[0, 1], [1]]", "to two clients"),
        ('{"a": 3}', "not a list of clients"),
        ("[[0, 1.5]]", "the examples of client 0 must be integers"),
        ("[[0, NaN]]", "the examples of client 0 must be integers"),
        ('{"ann": ["0"]}', "the examples of client ann must be integers"),
        ("[[0], [true]]", "the examples of client 1 must be integers"),
        ("[[100000000000000000000]]", "the examples of client 0 must be integers of 64 bits"),
        ("[[0]", "not a list of clients"),
    ],
)
def test_a_wrong_file_is_said(tmp_path, text, complaint):
    (tmp_path / "split.json").write_text(text)
    with pytest.raises(ValueError, match=complaint):
        deal(from_file.Split(path=str(tmp_path / "split.json")), some([0] * 6))
    with pytest.raises(ValueError, match=r"must be a .json or .npz file"):
        deal(from_file.Split(path=str(tmp_path / "none.json")), some([0] * 6))


@pytest.mark.parametrize(
    ("arrays", "complaint"),
    [
        ({"owner": np.array([0, 1, 0.5, 1, 0, 1])}, "owner must be integers"),
        ({"owner": np.array([0, 1, np.nan, 1, 0, 1])}, "owner must be integers"),
        ({"owner": np.array([True] * 6)}, "owner must be integers"),
        ({"owner": np.array(["a"] * 6)}, "owner must be integers"),
        ({"owner": np.array([0, 1, 0, 1])}, "owner must have the client of each of 6 examples"),
        ({"owner": np.array([0, 1, 0, 1, 0, 10**15])}, "owner must have the client of each of 6 examples"),
        ({"order": np.array([0, 1, 2]), "offsets": np.array([1, 3])}, "offsets must go from 0 to 3"),
        ({"order": np.array([0, 1, 2]), "offsets": np.array([0, 2])}, "offsets must go from 0 to 3"),
        ({"order": np.array([0, 1, 2]), "offsets": np.array([0, 3.0])}, "offsets must be integers"),
        ({"orders": np.array([0])}, "not a list of clients"),
    ],
)
def test_a_wrong_file_of_arrays_is_said(tmp_path, arrays, complaint):
    np.savez(tmp_path / "split.npz", **arrays)
    with pytest.raises(ValueError, match=complaint):
        deal(from_file.Split(path=str(tmp_path / "split.npz")), some([0] * 6))


def test_a_client_without_examples_is_refused_whoever_dealt():
    with pytest.raises(ValueError, match=r"client 1 of 2 has 0 examples, fewer than 1: .*split\.minimum=1: an empty"):
        Shards.of([torch.arange(3), torch.arange(0)], minimum=0)
    with pytest.raises(ValueError, match="no client is left"):
        Shards.of([])
    with pytest.raises(ValueError, match="client 1 is empty and cannot train"):
        Shards(torch.arange(3), torch.tensor([0, 3, 3])).refuse_strange(3)
    with pytest.raises(ValueError, match="no integers from 0 to 1"):
        Shards(torch.arange(3), torch.tensor([0, 3])).refuse_strange(2)


def test_more_clients_than_examples_are_refused_before_they_are_made():
    for name in ("iid", "dirichlet", "shards", "credit"):
        split = registry.find("split", name)(clients=10**8)
        with pytest.raises(ValueError, match=r"split\.clients=100000000: more than the 6 training examples"):
            Shards.deal(split, some([0, 1] * 3), 0)


def test_merging_into_more_than_there_are_leaves_each_for_itself():
    parts = deal(natural.Split(merge=10**15), some([0] * 8))
    assert sorted(len(part) for part in parts) == [2] * 4


def test_extreme_mixes_are_still_numbers():
    for alpha in (1e-30, 1e30):
        assert bool(log_dirichlet(alpha, 50, 10, stream(0)).exp().isfinite().all())
        deal(dirichlet.Split(alpha=alpha, size_alpha=alpha), some(TEN))


def test_fill_up_takes_from_the_largest_only():
    parts = [torch.arange(0, 50), torch.arange(50, 60), torch.arange(60, 61), torch.arange(61, 61)]
    filled = fill_up(parts, 6, stream(0))
    assert [len(part) for part in filled] == [39, 10, 6, 6]
    assert torch.equal(torch.cat(filled).sort().values, torch.arange(61))


def test_dirichlet_draws_have_the_right_mean_and_spread():
    draws = log_dirichlet(0.5, 20_000, 4, stream(0)).exp()
    assert torch.allclose(draws.sum(1), torch.ones(20_000, dtype=torch.float64))
    assert torch.allclose(draws.mean(0), torch.full((4,), 0.25, dtype=torch.float64), atol=0.01)
    assert torch.allclose(draws.var(0), torch.full((4,), 0.25 * 0.75 / 3, dtype=torch.float64), rtol=0.05)


def test_credit_fills_in_with_the_other_class():
    targets = (torch.arange(520) < 200).long()  # 230 positives are wanted
    parts = deal(credit.Split(), some(targets))
    assert [len(part) for part in parts] == [36] * 5 + [67] * 5
    assert [int(targets[part].sum()) for part in parts] == [2] * 5 + [44] * 4 + [14]


def test_resample_gives_every_client_its_own_draw_of_the_wanted_size():
    split = resample.Split(clients=2000, minimum=10, most=20, alpha=1.0)
    parts = deal(split, some(TEN))
    sizes = torch.tensor([len(part) for part in parts])
    assert set(sizes.tolist()) == set(range(10, 21))
    counts = table(parts, TEN).sum(0).double()
    assert counts.div(counts.sum()).sub(0.1).abs().max() < 0.01, "over many clients all classes come alike"
    assert len(parts.order.unique()) > 5900, "and all points"
    alone = deal(resample.Split(clients=50, alpha=1e-6), some(TEN))
    assert all(len(TEN[part].unique()) == 1 for part in alone)


def test_resample_never_draws_a_class_that_has_no_points():
    targets = torch.tensor([1, 1, 3])
    parts = deal(resample.Split(clients=200, alpha=0.5), some(targets))
    assert set(parts.order.tolist()) == {0, 1, 2}


def legacy(seed: int):
    """The global generator, as released programs use it."""
    np.random.seed(seed)
    return np.random


@pytest.mark.parametrize(("seed", "share"), [(62, 1.0), (63, 0.1)])
def test_numpy_dealing_is_the_released_one_draw_by_draw(seed, share):
    """By hand and by index: sizes, mixes, then class by class a shuffle and consecutive runs."""
    draw, labels = legacy(seed), TEN.numpy()
    sizes, mixes = draw.dirichlet([1.0] * 10), draw.dirichlet([0.5] * 10, 10)
    expected: list[list[int]] = [[] for _ in range(10)]
    for label in range(10):
        points, done = np.where(labels == label)[0], 0
        draw.shuffle(points)
        total = sum(sizes[k] * mixes[k, label] for k in range(10))
        for k in range(10):
            count = int(np.round(600 * share * sizes[k] * mixes[k, label] / total))
            count = 2 if count == 1 else count
            expected[k] += points[done : done + count].tolist()
            done += count
    split = dirichlet.Split(dealing="numpy", numpy_seed=seed, share=share)
    assert [part.tolist() for part in deal(split, some(TEN), 7)] == expected


@pytest.mark.parametrize("clients", [4, 12])
def test_numpy_dealing_of_two_classes_refuses_numbers_with_which_it_would_draw_for_ever(clients):
    split = classes.Split(clients=clients, points=10, dealing="numpy", numpy_seed=62)
    with pytest.raises(ValueError, match=rf"split\.clients={clients}: must be a number whose double 10 classes share"):
        deal(split, some(TEN))


def test_numpy_dealing_of_two_classes_gives_each_class_equally_often_and_repeats_the_last_points():
    targets = TEN[:3000].clone()
    targets[:50] = 9  # classes of unequal size
    parts = deal(classes.Split(clients=20, points=70, dealing="numpy", numpy_seed=62), some(targets))
    counts = table(parts, targets)
    assert set(counts.sum(1).tolist()) == {140}
    assert set(counts[counts > 0].tolist()) == {70}
    assert (counts > 0).sum(0).tolist() == [4] * 10
    draw = legacy(62)
    seen = np.zeros(10, dtype=int)
    for client in range(20):  # who has which class, by the released loop
        first = int(np.argmin(seen))
        seen[first] += 1
        second = first
        while second == first or seen[second] >= 4:
            second = draw.choice(10, 1, replace=False)[0]
        seen[second] += 1
        assert set(counts[client].nonzero().flatten().tolist()) == {first, second}
    assert all(len(part.unique()) == 140 for part in parts)  # repeated between clients, never within one


@pytest.mark.parametrize("alpha", [0.05, 0.4])
def test_fedbens_split_is_numpys_seed_3_whatever_the_runs_seed(alpha):
    draw, labels = legacy(3), TEN.numpy()
    mixes = [draw.dirichlet(np.repeat(alpha, 10)) for _ in range(5)]
    expected: list[list[int]] = [[] for _ in range(5)]
    for label in range(10):
        points = np.where(labels == label)[0]
        draw.shuffle(points)
        share = np.array([mix[label] for mix in mixes])
        ends = (np.cumsum(share / share.sum()) * 600).astype(int)[:-1]
        for client, run in enumerate(np.split(points, ends)):
            expected[client] += run.tolist()
    for part in expected:
        draw.shuffle(part)  # a list, as released
    for seed in (1, 2):
        assert [part.tolist() for part in deal(fedbens.Split(alpha=alpha), some(TEN), seed)] == expected


def test_a_share_needs_the_dealing_that_takes_it():
    with pytest.raises(ValueError, match=r"split\.share.*data\.fraction"):
        dirichlet.Split(share=0.1)
