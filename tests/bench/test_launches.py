"""What a GPU would be asked to do: no copy and no number read back in a local step, of any method or solver."""

import pytest

from fedddp.bench import launches
from fedddp.core import registry
from tests import forked

SOLVERS = {"adam": "fedavg", "iasg": "fedpa", "laplace": "pvi", "ivon": "bayes_admm"}
CASES = {name: [f"method={name}"] for name in registry.builtin("method")} | {
    f"local {solver}": [f"method={method}", f"local={solver}"] for solver, method in SOLVERS.items()
}
MOST = {
    "fedavg": 18,
    "local adam": 18,
    "feddyn": 18,
    "bayes_admm": 22,
}  # kernels in a step of an MLP, fused ones as one


@pytest.fixture(scope="module")
def rows():
    return dict(zip(CASES, forked.call(launches.count, list(CASES.values())), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_a_step_neither_waits_for_the_host_nor_keeps_it_waiting(rows, case):
    row = rows[case]
    assert not row.lines, f"asked for in every step: {row.lines}"
    assert (row.copies, row.reads) == (0, 0)


@pytest.mark.parametrize("case", MOST)
def test_kernels_of_a_step(rows, case):
    assert 0 < rows[case].kernels <= MOST[case], rows[case].names


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
    text = BAD.format(name=name, line=FAULTS[name])
    path = tmp_path / "bad.py"
    path.write_text(text)
    (row,) = forked.call(launches.count, [[f"method={path}:{name}"]])
    assert row.copies + row.reads >= 1
    number = next(i for i, line in enumerate(text.splitlines(), 1) if FAULTS[name] in line)
    assert f"{path}:{number}" in row.lines
