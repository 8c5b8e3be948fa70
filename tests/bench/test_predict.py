"""The cost model: constants are found again from what they would have cost, and predictions add up."""

from dataclasses import replace

import numpy as np
import pytest

from fedddp.bench.model import Machine, Round, features, predict, seconds
from fedddp.bench.predict import CALIBRATE, calibrate, fit, line, measure
from fedddp.cli import main
from fedddp.exchange.group import Exchange

MACHINE = Machine(cohort=2e-4, step=1e-4, row=3e-6, flop=2e-11, number=4e-10, trip=5e-5, word=1e-8, bandwidth=1e9)


def test_the_fit_finds_the_constants_again():
    rng = np.random.default_rng(0)
    sizes = rng.integers((100, 1, 1), (10**6, 64, 9), (40, 3)).tolist()  # parameters, batch, width
    rounds = [Round.even(1, 8, params, 500, batch, 1, width, 0) for params, batch, width in sizes]
    rows = [features(task, task.works[0][1]) for task in rounds]
    took = [seconds(MACHINE, task, task.works[0][1]) for task in rounds]
    found = fit(rows, took)
    assert found == pytest.approx([MACHINE.cohort, MACHINE.step, MACHINE.row, MACHINE.flop, MACHINE.number], rel=1e-3)


def test_no_constant_is_below_zero():
    assert min(fit([(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)], [3.0, 2.0, 1.0])) >= 0


def test_a_round_is_the_sum_of_its_parts_by_hand():
    found = predict(MACHINE, Round.even(2, 4, 1000, 50, 10, 1, 2, 0))  # two cohorts of two clients, five batches each
    local = 2e-4 + 5 * 1e-4 + 10 * 3e-6 + 6 * 1000 * 10 * 10 * 2e-11 + 1000 * 10 * 4e-10
    assert found["local"] == pytest.approx(local)
    assert found["exchange"] == pytest.approx(2 * 5e-5 + 1000 * 1e-8 + 8 * 1000 / 1e9)
    assert found["round"] == pytest.approx(local + found["exchange"])
    assert found["busy"] == 1


def test_twice_the_ranks_halve_the_local_work_and_lengthen_the_exchange():
    small, large = (predict(MACHINE, Round.even(ranks, 64, 10**5, 50, 10, 1, 4, 0)) for ranks in (4, 8))
    assert small["local"] == pytest.approx(2 * large["local"])
    assert small["exchange"] < large["exchange"]


def play() -> list[str]:
    exchange = Exchange()
    some = dict(list(CALIBRATE.items())[:3])
    found = measure(some, ["split.clients=8"], 3, exchange)
    machine = calibrate(list(found.values()), exchange)
    return [line(name, run, predict(machine, run.task), new=False) for name, run in found.items()]


def test_constants_come_from_real_rounds_on_every_rank(worlds):
    one, two = worlds(2).run(play)
    assert len(one) == len(two) == 3
    assert all("2 ranks" in text and "ratio" in text for text in one)


def test_what_is_asked_about_other_machines_is_answered(capsys):
    words = [f"{name}={value}" for name, value in vars(MACHINE).items() if name != "bandwidth"]
    asked = ["--ranks", "1024", "--clients", "1000000", "--params", "1000000", "--bandwidth", "1e10"]
    with pytest.raises(SystemExit, match="0"):
        main(["bench", "--predict", *asked, *words])
    text = capsys.readouterr().out
    assert "1,000,000 clients, 10,000 active, 1,000,000 parameters on 1,024 ranks" in text
    expected = predict(replace(MACHINE, bandwidth=1e10), Round.even(1024, 10_000, 10**6, 100, 32, 1, 8, 0))
    assert f"round {expected['round']:.4g} s" in text
