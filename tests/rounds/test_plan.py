"""Plans: grouping ignores the world, work is balanced, sampling is keyed by the round."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedddp.config.loading import load
from fedddp.rounds.plan import Plan, default_width, draw, place, sample
from fedddp.runs import build
from fedddp.runs.build import cohort_width, make_task, measure_width

sizes = st.lists(st.integers(1, 500), min_size=1, max_size=60).map(torch.tensor)


@given(sizes, st.integers(1, 9), st.floats(0.05, 1.0), st.booleans(), st.integers(0, 5))
@settings(max_examples=60, deadline=None)
def test_cohorts_do_not_depend_on_the_number_of_ranks(counts, width, participation, memory, round_):
    active = sample(0, round_, len(counts), participation)
    groups = []
    for ranks in (1, 2, 3, 7):
        plan = Plan.make(counts, width, participation, ranks)
        cohorts = plan.cohorts(active, memory)
        groups.append([c.ids for c in cohorts])
        if memory:
            assert all(int(plan.home[i]) == c.rank for c in cohorts for i in c.ids)
    assert all(g == groups[0] for g in groups)
    assert sorted(i for ids in groups[0] for i in ids) == active.tolist()
    for ids in groups[0]:
        assert len(ids) <= width
        assert [int(counts[i]) for i in ids] == sorted((int(counts[i]) for i in ids), reverse=True)


@given(sizes, st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_every_client_has_one_home(counts, ranks):
    plan = Plan.make(counts, 3, 1.0, ranks)
    homes = torch.cat([plan.at_home(r) for r in range(ranks)])
    assert sorted(homes.tolist()) == list(range(len(counts)))


def test_work_is_balanced():
    """100 clients in cohorts of 5 on two ranks: the busier rank has at most 5 % more than its share."""
    counts = torch.randint(50, 500, (100,), generator=torch.Generator().manual_seed(0))
    plan = Plan.make(counts, 5, 1.0, 2)
    loads = [int(counts[plan.at_home(r)].sum()) for r in range(2)]
    assert max(loads) <= 1.05 * sum(loads) / 2


def test_place_gives_the_dearest_first():
    assert place([5, 9, 4, 1], 2) == [1, 0, 1, 0]


def test_sampling_is_keyed_by_seed_and_round():
    assert torch.equal(sample(0, 3, 100, 0.3), sample(0, 3, 100, 0.3))
    assert not torch.equal(sample(0, 3, 100, 0.3), sample(0, 4, 100, 0.3))
    assert not torch.equal(sample(0, 3, 100, 0.3), sample(1, 3, 100, 0.3))
    assert len(sample(0, 3, 100, 0.3)) == 30
    assert len(sample(0, 0, 3, 0.01)) == 1


@given(st.integers(1, 5000), st.floats(0.0, 1.0), st.integers(0, 2**40))
@settings(max_examples=60, deadline=None)
def test_a_few_are_drawn_as_the_first_of_a_permutation_of_all(total, share, seed):
    count = max(1, int(share * total))
    everyone = torch.randperm(total, generator=torch.Generator().manual_seed(seed))
    assert draw(count, total, torch.Generator().manual_seed(seed)) == everyone[:count].tolist()


def test_default_width_is_a_rule_of_kind_and_size():
    assert default_width(178_110, False, 100) == 8
    assert default_width(178_110, False, 10) == 2
    assert default_width(7_850, False, 1000) == 64
    assert default_width(44_190, True, 100) == 1
    assert default_width(44_190, True, 100, "cuda") == 25, "a GPU would idle with one client at a time"
    assert default_width(11_000_000, True, 100, "cuda") == 18
    assert default_width(178_110, False, 1000, "cuda") == 64


@pytest.mark.parametrize(
    ("words", "width"),
    [
        (["model.name=lenet"], 5),
        (["model.name=lenet", "federation.vectorise=false"], 1),
        (["model.name=lenet", "federation.autocast=bf16"], 1),
        (["model.name=lenet", "local.micro_batch=4"], 1),
        (["model.name=hwa_cnn"], 1),
    ],
)
def test_on_a_processor_narrow_convolutions_go_in_groups(words, width):
    """LeNet's six channels leave registers empty that five clients' fill; 32 do not, nor is vmap any quicker."""
    config = load(
        None, ["data=fedddp.bench.servers:Noise", "split.name=iid", "split.clients=20", "data.count=400", *words]
    )
    assert cohort_width(config, make_task(config, torch.device("cpu"))) == width


@pytest.mark.parametrize("best", [1, 4, 8])
def test_auto_takes_the_width_with_the_quickest_gradient_of_a_client(monkeypatch, best):
    """One client after the other competes with several together; more than half of the clients are never asked."""
    tried = []

    def seconds(oracle, theta, inputs, targets):
        width = len(theta)
        assert len(inputs) == len(targets) == width
        tried.append(width)
        return width * (1 + abs(width - best))

    monkeypatch.setattr(build, "_seconds", seconds)
    config = load(None, ["data=fedddp.bench.servers:Noise", "split.name=iid", "split.clients=20", "data.count=400"])
    assert measure_width(config, make_task(config, torch.device("cpu"))) == best
    assert sorted(set(tried)) == [1, 2, 4, 8]
