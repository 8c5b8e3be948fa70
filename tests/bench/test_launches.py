"""The table of what a GPU would be asked to do: every method and every solver has its row."""

import argparse

import pytest

from fedddp.bench import launches
from fedddp.checks.rows import Failure
from fedddp.core import registry


def test_every_method_and_every_solver_has_a_row():
    rows = launches.cases()
    assert set(registry.builtin("method")) <= set(rows)
    assert {f"local={name}" for name in registry.builtin("local")} <= set(rows)


def test_settings_may_be_named_with_a_method_or_a_solver(capsys):
    launches.call(argparse.Namespace(), ["method=fedavg", "local=adam"])
    launches.call(argparse.Namespace(), ["local=exact"])
    head, adam, _, exact = capsys.readouterr().out.splitlines()
    assert head.split()[:4] == ["kernels", "plain", "copies", "reads"]
    assert adam.split()[:2] == ["fedavg", "16.5"]
    assert exact.split()[:5] == ["local=exact", "0.0", "0.0", "0.0", "0.0"]


@pytest.mark.parametrize("word", ["method=nothing", "local=nothing"])
def test_a_name_that_is_unknown_is_refused(word):
    with pytest.raises((ValueError, Failure), match="nothing"):
        launches.call(argparse.Namespace(), [word])
