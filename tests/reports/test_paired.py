"""Significance over seeds: known answers, and what few seeds cannot say."""

import math

import numpy as np
import pytest
from scipy import stats

from fedddp.reports.paired import both, compare, holm, sign_flip
from fedddp.reports.rows import group
from fedddp.reports.runs import read
from tests.reports.conftest import write_run


@pytest.mark.parametrize("count", [2, 5, 8])
def test_both_tests_are_scipys(count):
    values = np.random.default_rng(count).normal(0.3, 1, count)
    found = both(values)
    usual = stats.ttest_1samp(values, 0)
    assert found.p_t == pytest.approx(usual.pvalue)
    assert (found.low, found.high) == pytest.approx(tuple(usual.confidence_interval(0.95)))
    exact = stats.permutation_test((values,), np.mean, permutation_type="samples", n_resamples=np.inf)
    assert found.p_exact == pytest.approx(exact.pvalue)


def test_few_seeds_cannot_be_significant_by_signs():
    for count in range(2, 9):
        assert sign_flip(np.arange(1.0, count + 1)) == 2 / 2**count  # all of one sign: the smallest p there is
    assert both(np.arange(1.0, 6)).limit.startswith("5 seeds: no exact p below 0.062")
    assert both(np.arange(1.0, 6)).p == both(np.arange(1.0, 6)).p_t
    assert both(np.arange(1.0, 7)).p == 2 / 2**6
    assert both(np.ones(1)).limit == "one seed: nothing can be said"
    assert math.isnan(both(np.ones(1)).p)
    assert both(np.ones(0)).limit == "no seed in common"
    assert math.isnan(both(np.ones(4)).p_t)  # no spread: t has nothing to divide by


def test_holm():
    assert holm([0.01, 0.04, 0.03, float("nan")])[:3] == pytest.approx([0.03, 0.06, 0.06])
    assert math.isnan(holm([float("nan")])[0])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_runs_are_paired_by_all_their_seeds(tmp_path):
    for method, seeds in (("fedavg", (0, 1, 2)), ("fedprox", (2, 1, 5))):
        for seed in seeds:
            last = seed / 10 + (0.5 if method == "fedprox" else 0)
            write_run(tmp_path / f"{method}{seed}", {"method": {"name": method}, "seed": seed}, {"accuracy": [last]})
    one, other = sorted(group(read([tmp_path]), ["method"]), key=lambda row: row.name)
    found = compare(other, one, "accuracy")
    assert found.count == 2  # seeds 1 and 2
    assert found.mean == pytest.approx(0.5)
