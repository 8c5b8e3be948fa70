"""What a GPU would be asked to do: no copy and no number read back in a local step, of any method or solver."""

from itertools import takewhile
from pathlib import Path

import pytest

from fedddp.bench.launches import cases
from fedddp.checks import launches
from fedddp.checks.method import Checks
from fedddp.checks.rows import Broken
from fedddp.core import registry
from tests import forked

CASES = cases()
MOST = {"fedavg": 18, "local=adam": 18, "feddyn": 18, "bayes_admm": 22, "local=langevin": 30, "fedpa": 27}
# kernels in a step of an MLP, fused ones as one
SOME = 12


class Rows(dict):
    """Counted as they are asked for, some cases at a time: a process to itself takes a while to begin."""

    def __missing__(self, case):
        names = list(CASES)
        start = names.index(case) // SOME * SOME
        some = names[start : start + SOME]
        self.update(zip(some, forked.call(launches.count, [CASES[name] for name in some]), strict=True))
        return self[case]


@pytest.fixture(scope="module")
def rows():
    return Rows()


@pytest.mark.parametrize("case", CASES)
def test_a_step_neither_waits_for_the_host_nor_keeps_it_waiting(rows, case):
    """But for a solver that says it must."""
    row = rows[case]
    waits = case.startswith("local=") and registry.find("local", case.removeprefix("local=")).waits
    assert row.copies == 0, f"asked for in every step: {row.lines}"
    assert waits or row.reads == 0, f"asked for in every step: {row.lines}"


def test_who_waits():
    """A line search decides on the host how far to go."""
    assert {name for name in registry.builtin("local") if registry.find("local", name).waits} == {"von"}


@pytest.mark.parametrize("case", MOST)
def test_kernels_of_a_step(rows, case):
    assert 0 < rows[case].kernels <= MOST[case], rows[case].names


def said():
    """{case: kernels} of docs/gpu.md, in whose table several share a row."""
    lines = (Path(__file__).parents[2] / "docs" / "gpu.md").read_text().splitlines()
    begin = next(number for number, line in enumerate(lines) if line.startswith("| methods and solvers"))
    cells = [line.split("|")[1:4] for line in takewhile(lambda line: line.startswith("|"), lines[begin + 2 :])]
    return {name: float(now.split()[0]) for names, _, now in cells for name in names.strip().split(", ")}


@pytest.mark.parametrize("case", CASES)
def test_the_page_says_what_is_counted(rows, case):
    assert said()[case] == round(rows[case].kernels, 1)


def test_fused_kernels_are_counted_as_one(rows):
    (plain,) = forked.call(launches.count, [CASES["bayes_admm"]], False)
    assert {"ivon_step", "perturb", "gather", "cross_entropy"} <= set(rows["bayes_admm"].names)
    assert plain.kernels > 3 * rows["bayes_admm"].kernels


BAD = """
import torch
from fedddp.methods import fedavg

class {name}(fedavg.Method):
    def client_step(self, server, clients, cohort, local):
        def turn(theta, grad, batch):
            {line}
            return grad
        return super().client_step(server, clients, cohort.steered(turn), local)
"""
FAULTS = {
    "Reads": "assert float(grad.sum()) < 1e9",
    "Copies": "grad += torch.zeros(1).to(grad.device)",
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_line_that_breaks_the_rule_is_named(tmp_path, name):
    """By `fedddp check`, and by the test above for a built-in one."""
    text = BAD.format(name=name, line=FAULTS[name])
    path = tmp_path / "bad.py"
    path.write_text(text)
    number = next(i for i, line in enumerate(text.splitlines(), 1) if FAULTS[name] in line)
    with pytest.raises(Broken, match=f"{path}:{number}"):
        Checks([f"method={path}:{name}", "local=sgd"], 2).steps()
