"""What a step of a server's descent asks of a device: little, and no more for more clients or members."""

import json

import pytest

from fedddp.checks import pretend
from tests.forked import fedddp

pytestmark = pytest.mark.skipif(not pretend.possible(), reason="needs a newer torch")
MOST = {"fedbens/kron": 72, "fedbens/last": 48, "fedfisher/kfac": 12, "fedlap_func": 28}  # kernels, on the small MLP


def counted(folder, *words):
    """Of each method; in a process of its own, because the pretended device changes torch for good."""
    done = fedddp("bench", "servers", "on=mlp", *words, "--repeat", 0, "--out", folder / "rows.json")
    assert done.returncode == 0, done.stderr
    return {row["method"]: row for row in json.loads((folder / "rows.json").read_text())}


def test_a_step_is_a_few_kernels_and_reads_nothing_back(tmp_path):
    rows = counted(tmp_path, "case=fedbens/kron", "case=fedbens/last", "method.members=2", "split.clients=3")
    rows |= counted(tmp_path, "case=fedfisher/kfac", "case=fedlap_func", "split.clients=3")
    assert rows.keys() == MOST.keys()
    for name, row in rows.items():
        assert row["kernels"] <= MOST[name], name
        assert row["reads"] == 0, name
        assert row["copies"] <= 1, name
    words = ["method.members=3", "split.clients=7", "federation.cohort_width=7"]
    more = counted(tmp_path, "case=fedbens/kron", *words)["fedbens/kron"]
    assert more["kernels"] == rows["fedbens/kron"]["kernels"]  # neither clients nor members add any


def test_looks_at_validation_points_read_nothing_back(tmp_path):
    words = ["data.validation=10", "method.validate_every=1", "method.members=2", "split.clients=2"]
    row = counted(tmp_path, "case=fedbens/diag", *words)["fedbens/diag"]
    assert row["reads"] == 0
    assert row["kernels"] <= 90
