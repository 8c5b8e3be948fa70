"""What every method and every solver would ask of a GPU in a local step, as fedddp/checks/launches.py counts it."""

import argparse
from collections.abc import Sequence

from fedddp.checks.kind import with_method
from fedddp.checks.launches import Row, count
from fedddp.core import registry

SHOWN = 3  # lines of a table's foot
SETTINGS = {"exact": ["model.name=logistic", "model.loss=squared_error"]}  # of what a solver can solve


def cases() -> dict[str, list[str]]:
    """The settings of every row: each method with its usual solver, each solver with the first method that it fits."""
    methods = {name: [f"method={name}"] for name in registry.builtin("method")}
    return methods | _solvers(registry.builtin("local"))


def _solvers(names: Sequence[str]) -> dict[str, list[str]]:
    return {f"local={name}": with_method(name, SETTINGS.get(name, [])) for name in names}


def call(arguments: argparse.Namespace, words: list[str]) -> int:
    """`fedddp bench launches [method=NAME,...] [local=NAME,...] [key=value...]`: all rows, or those of these names."""
    methods, solvers = _named("method", words), _named("local", words)
    if methods:
        rows, used = {name: [f"method={name}"] for name in methods}, ("method=",)
    else:
        rows, used = (_solvers(solvers) if solvers else cases()), ("local=",)
    rest = [word for word in words if not word.startswith(used)]
    print(f"{'':<16}{'kernels':>9}{'plain':>8}{'copies':>8}{'reads':>7}   beside its steps a round asks for")
    for name, settings in rows.items():
        (row,), (plain,) = (count([[*settings, *rest]], fused) for fused in (True, False))
        print(line(name, row, plain.kernels), flush=True)
    return 0


def _named(section: str, words: Sequence[str]) -> list[str]:
    """NAME,... of the first word section=NAME,..."""
    found = [word.partition("=")[2] for word in words if word.startswith(f"{section}=")]
    return found[0].split(",") if found else []


def line(name: str, row: Row, plain: float) -> str:
    beside = f"{row.round_kernels:.0f} kernels, {row.round_copies:.0f} copies, {row.round_reads:.0f} reads"
    first = f"{name:<16}{row.kernels:>9.1f}{plain:>8.1f}{row.copies:>8.1f}{row.reads:>7.1f}   {beside}"
    asks = [f"{'':<16}{value:.1f} a step: {where}" for where, value in list(row.lines.items())[:SHOWN]]
    return "\n".join([first, *asks])
