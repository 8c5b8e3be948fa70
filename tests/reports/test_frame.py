"""The same numbers for Python."""

import subprocess
import sys

import pytest

from fedddp import reports
from tests.reports.conftest import POINTS, ROUNDS, records

pandas = pytest.importorskip("pandas")


def test_a_row_per_run(sweep):
    frame = reports.load(sweep)
    assert len(frame) == len(POINTS)
    assert frame["done"].all()
    means = frame.groupby(["method.name", "local.lr"])["accuracy"].agg(["mean", "std"])
    for record in reports.make([sweep]).table.records():
        found = means.loc[record["method"], float(record["local.lr"])]
        assert found["mean"] == pytest.approx(record["accuracy"], rel=1e-12)
        assert found["std"] == pytest.approx(record["accuracy_std"], rel=1e-9)
    assert frame["bytes"].iloc[0] == sum(r["bytes"] for r in records(sweep / "0"))


def test_a_row_per_round(sweep):
    frame = reports.load(sweep, every_round=True)
    assert len(frame) == len(POINTS) * ROUNDS
    first = frame[frame["folder"] == str(sweep / "0")]
    assert first["nll"].tolist() == [r["nll"] for r in records(sweep / "0")]
    assert first["round"].tolist() == list(range(1, ROUNDS + 1))


def test_without_pandas_the_error_names_it(sweep):
    code = f"import sys; sys.modules['pandas'] = None; from fedddp import reports; reports.load({str(sweep)!r})"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: fedddp.reports.load returns a pandas frame: install pandas" in result.stderr
