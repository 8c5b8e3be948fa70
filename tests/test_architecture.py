"""Rules of the house that a machine can check."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from fedddp import registry
from fedddp.config import folder

PACKAGE = Path(__file__).parent.parent / "fedddp"
FILES = sorted(PACKAGE.rglob("*.py"))


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


def test_only_exchange_talks_to_torch_distributed():
    """The launcher may start torchrun's agent; collectives live in one file."""
    users = {p.name for p in FILES if any(name == "torch.distributed" for name in imports(p))}
    assert users <= {"exchange.py"}
    agents = {str(p.relative_to(PACKAGE)) for p in FILES if any(n.startswith("torch.distributed.") for n in imports(p))}
    assert agents <= {"launch.py", "jobs/meeting.py", "jobs/rank.py"}


def test_imports_point_one_way():
    """The engine does not know methods, data or jobs by name; methods do not know the engine's loop."""
    for path in FILES:
        names = imports(path)
        if path.parent.name in ("methods", "local", "models", "data", "splits"):
            for above in ("fedddp.federate", "fedddp.job", "fedddp.cli", "fedddp.exchange"):
                assert not any(n == above or n.startswith(f"{above}.") for n in names), f"{path.name} imports {above}"


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_files_can_be_read_in_a_sitting(path):
    assert path.read_text().count("\n") <= 400
    tree = parsed(path)
    assert ast.get_docstring(tree), "a module says what it is"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            assert node.end_lineno - node.lineno <= 60, f"{node.name} is too long"


def test_importing_everything_has_no_side_effects():
    code = """
import importlib, pkgutil, random, threading, torch, fedddp
state, before = torch.get_rng_state(), threading.active_count()
for found in pkgutil.walk_packages(fedddp.__path__, "fedddp."):
    if found.name != "fedddp.__main__" and not found.name.startswith(("fedddp.configs", "fedddp.slurm")):
        importlib.import_module(found.name)
assert torch.equal(state, torch.get_rng_state())
assert threading.active_count() == before
assert not torch.distributed.is_initialized()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


@pytest.mark.parametrize("method", registry.names("method"))
def test_every_method_has_its_yaml(method):
    assert (folder("method") / f"{method}.yaml").exists(), f"configs/method/{method}.yaml names its usual solver"
