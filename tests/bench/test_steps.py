"""The bench of single steps measures every solver, plain and private, and says how much dearer noise is."""

import pytest

from fedddp.bench import steps
from fedddp.clients.cohort import Cohort
from fedddp.clients.oracle import Oracle
from fedddp.clients.private import Guard, PrivateCohort, guarded
from tests.methods import given

pytest.importorskip("cryptography", reason="a cipher makes the noise: pip install 'fedddp[privacy]'")


def test_every_solvers_step_is_measured_with_and_without_noise(monkeypatch):
    monkeypatch.setattr(steps, "TURNS", 3)
    seen = []
    monkeypatch.setattr(PrivateCohort, "_batches_of", lambda self, size: seen.append(size) or batches_of(self, size))
    task = given.task(given.mlp(), (5,))
    cohorts = [
        made((0, 1, 2), 0, task, Oracle(task.module, task.layout, task.objective))
        for made in (Cohort, guarded(Guard(clip=1.0, noise=1.0)))
    ]
    row = steps.measure(*cohorts)
    assert seen.count(32) == 3 * len(steps.SOLVERS)  # every turn trains
    for name in steps.SOLVERS:
        assert row[name] > 0
        assert row[f"private {name}"] > 0
        assert f"{name} {row[f'private {name}']:.3f} ({row[f'private_{name}_ratio']:.2f}x)" in steps.line(row)


batches_of = PrivateCohort._batches_of
