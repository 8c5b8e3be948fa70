"""The cost of cohorts: learned from what they took, alike on all ranks, and never a reason for other bits."""

import json
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fedddp.exchange.group import Exchange
from fedddp.local import sgd
from fedddp.methods import fedavg
from fedddp.rounds import checkpoint
from fedddp.rounds.cost import Cost, Timed, Work
from fedddp.rounds.federate import checksum
from fedddp.rounds.plan import Plan, place
from tests import toy
from tests.small import MODELS, fresh, run, settings

TRUE = Work(2e-3, 5e-4, 1e-3)


def timed(cost: Cost, sizes: list[int], rank: int = 0, slower: float = 1.0) -> Timed:
    work = cost.work(sizes)
    return Timed(work, rank, slower * sum(t * w for t, w in zip(TRUE, work, strict=True)))


def test_constants_are_found_from_cohorts_of_several_shapes():
    cost = Cost(epochs=2, batch_size=10)
    cohorts = [timed(cost, sizes) for sizes in ([100, 90, 5], [40], [400, 30, 20, 10], [9, 9])]
    for _ in range(20):
        cost.learn(cohorts, ranks=1)
    assert list(cost.constants) == pytest.approx(list(TRUE), rel=0.1)


def test_what_cohorts_leave_open_stays_near_the_guess_and_nothing_is_below_zero():
    cost = Cost(batch_size=10)
    cost.learn([Timed(cost.work([10]), 0, 1e-6), Timed(cost.work([1000]), 0, 1.0)], ranks=1)
    assert min(cost.constants) >= 0
    cost = Cost(batch_size=10)
    cost.learn([Timed(Work(1, 5, 5), 0, 2 * cost.seconds(Work(1, 5, 5)))] * 3, ranks=1)
    assert cost.seconds(Work(1, 5, 5)) == pytest.approx(2 * Cost().seconds(Work(1, 5, 5)), rel=0.01)


def test_a_slower_rank_gets_less():
    cost = Cost(batch_size=10)
    for _ in range(60):
        cost.learn([timed(cost, [50, 40]), timed(cost, [30, 20]), timed(cost, [50, 40], 1, 3.0)], ranks=2)
    placed = place([1.0] * 40, 2, cost.rank_speeds)
    assert placed.count(1) in (9, 10, 11)
    assert place([1.0] * 40, 2).count(1) == 20


def test_noise_moves_nothing():
    cost = Cost(batch_size=10)
    cost.learn([timed(cost, [50, 40], 0, 1.02), timed(cost, [50, 40], 1, 0.98)], ranks=2)
    assert cost.rank_speeds == []


def test_homes_are_balanced_by_steps_where_examples_would_mislead():
    """Two clients of 64 examples take 4 steps, 64 of 2 take 64: examples alone would call them even."""
    sizes = torch.tensor([64, 64] + [2] * 64)
    plan = Plan.make(sizes, 1, 1.0, 2, Cost(batch_size=32, guess=TRUE, constants=Work(0.0, 0.0, 1.0)))
    steps = [sum(-(-int(sizes[k]) // 32) for k in plan.at_home(rank)) for rank in range(2)]
    assert steps == [34, 34]


@dataclass
class SlowOn(fedavg.Method):
    rank: int = 0
    here: int = 0

    def client_step(self, server, clients, cohort, local):
        time.sleep(0.02 if self.rank == self.here else 0.0)
        return super().client_step(server, clients, cohort, local)


def play(slow: int) -> tuple[str, list[float], list[int]]:
    exchange = Exchange()
    fed = toy.federation(SlowOn(rank=slow, here=exchange.rank), sgd.Solver(lr=0.01), toy.task(), exchange, width=1)
    server, idle = fed.method.init_server(fed.task), []
    for number in range(4):
        server, report = fed.round(server, number)
        idle.append(report.idle)
    placed = [c.rank for c in fed.plan.cohorts(torch.arange(fed.task.num_clients), memory=False)]
    return checksum(server), idle, placed


def test_ranks_learn_alike_and_a_slow_one_changes_no_bits(worlds):
    found = {slow: worlds(2).run(play, slow) for slow in (0, 1, 2)}
    for here, there in found.values():
        assert here == there, "all ranks know the same"
        assert all(min(idle) == 0 and len(idle) == 2 for idle in here[1])
    assert len({both[0][0] for both in found.values()}) == 1


def test_idle_time_and_planning_are_recorded_for_every_rank(worlds, tmp_path):
    worlds(2).run(run, settings("fedavg", *MODELS["mlp"]), fresh(tmp_path, "run"))
    for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines():
        record = json.loads(line)
        assert len(record["seconds_idle"]) == 2
        assert record["seconds_idle_max"] == max(record["seconds_idle"])
        assert record["seconds_idle_mean"] == sum(record["seconds_idle"]) / 2
        assert record["seconds_plan"] > 0
    scalars = EventAccumulator(str(tmp_path / "run")).Reload().Tags()["scalars"]
    assert {f"7_system/seconds_{name}" for name in ("idle_max", "idle/rank_0", "idle/rank_1", "plan")} <= set(scalars)


def test_a_resumed_run_starts_from_what_was_measured(exchange, tmp_path):
    words = settings("feddyn", *MODELS["mlp"], "checkpoint.every=1")
    assert run(words, fresh(tmp_path, "run"), kill_after=2) is None
    newest = checkpoint.found(Path(tmp_path) / "run/checkpoints")[-1]
    constants = checkpoint.about(newest)["cost"]
    assert len(constants) == 3
    assert Cost.of(sgd.Solver(), 10, constants).constants == Work(*(max(c, 1e-9) for c in constants))
    assert run(words, str(tmp_path / "run"), resume=True) is not None
