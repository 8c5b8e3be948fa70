"""The contract of a method, as a type checker and Python see it."""

import subprocess
import sys

import pytest

import fedddp

GOOD = """
from typing import Any, NamedTuple
from torch import Tensor
import fedddp
from fedddp import Clients, Cohort, Mean, Message, PointSolver, Server, Task, Totals

class Mine(fedddp.Method):
    strength: float = 0.1

    def client_step(
        self, server: Server, clients: Clients, cohort: Cohort, local: PointSolver
    ) -> tuple[Clients, Message]:
        fit = local.minimise(cohort, server.theta, clients.solver)
        return Clients(fit.memory), {"theta": Mean(fit.theta)}

    def server_step(self, server: Server, total: Totals, task: Task) -> Server:
        return Server(total["theta"])

made = Mine(strength=0.2)
"""
MISTAKES = {
    "a missing step": (
        GOOD.replace("def server_step", "def _server_step"),
        'Cannot instantiate abstract class "Mine" with abstract attribute "server_step"',
    ),
    "a wrong message": (
        GOOD.replace("Mean(fit.theta)", "fit.theta"),
        'has incompatible type "str": "Tensor"; expected "str": "Sum | Mean | Gather"',
    ),
    "a solver of another kind": (
        GOOD.replace("local.minimise(cohort, server.theta, clients.solver)", "local.fit(cohort)"),
        '"PointSolver" has no attribute "fit"',
    ),
    "a wrong setting": (GOOD.replace("strength=0.2", "strenght=0.2"), 'Unexpected keyword argument "strenght"'),
    "a step that returns another memory": (
        GOOD.replace('return Server(total["theta"])', 'return total["theta"]'),
        'Incompatible return value type (got "Tensor", expected "Server")',
    ),
}


def test_a_type_checker_finds_mistakes(tmp_path):
    """All at once: mypy spends its time on torch, not on these."""
    (tmp_path / "good.py").write_text(GOOD)
    for number, (text, _) in enumerate(MISTAKES.values()):
        (tmp_path / f"bad_{number}.py").write_text(text)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", ".mypy_cache"]
    result = subprocess.run([*command, *map(str, tmp_path.glob("*.py"))], capture_output=True, text=True)
    lines = result.stdout.splitlines()
    assert not [line for line in lines if "good.py" in line and "error" in line], result.stdout
    for number, (name, (_, message)) in enumerate(MISTAKES.items()):
        found = [line for line in lines if f"bad_{number}.py" in line]
        assert any(message in line for line in found), f"{name}: {found}"


def test_a_misspelt_hook_is_refused_when_the_class_is_defined():
    with pytest.raises(TypeError, match=r"Mine\.metric: not part of the contract .*; did you mean metrics\?"):

        class Mine(fedddp.Method):
            def metric(self, before, after, total):
                return {}


def test_a_helper_begins_with_an_underscore_and_a_setting_is_annotated():
    class Mine(fedddp.Method):
        strength: float = 1.0

        def _helper(self):
            return self.strength

        def client_step(self, server, clients, cohort, local):
            return clients, {}

        def server_step(self, server, total, task):
            return server

    assert Mine(strength=2.0)._helper() == 2.0
    with pytest.raises(TypeError, match=r"Other\.strength: not part of the contract"):

        class Other(fedddp.Method):
            strength = 1.0


def test_a_method_without_its_steps_cannot_be_made():
    class Mine(fedddp.Method):
        def client_step(self, server, clients, cohort, local):
            return clients, {}

    with pytest.raises(TypeError, match=r"abstract method '?server_step"):
        Mine()
