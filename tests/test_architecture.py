"""Rules of the house that a machine can check."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from fedddp.config.loading import folder
from fedddp.core import registry

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


ROOMS = (  # a room may import from itself and from those above it; rooms side by side may know each other
    {"core"},
    {"exchange"},
    {"clients"},
    {"rounds"},
    {"methods", "local", "models", "data", "splits"},
    {"config"},
    {"records"},
    {"evaluation"},
    {"runs"},
    {"jobs"},
    {"reports"},
    {"checks", "figures", "bench", "reproduce"},
    {"api", "__init__"},
    {"commands"},
    {"cli", "__main__"},
)
LEVEL = {room: level for level, rooms in enumerate(ROOMS) for room in rooms}


def room(module: str) -> str:
    """`fedddp.core.check` is in core."""
    return module.split(".")[1] if "." in module else "__init__"


def module(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def upward(path: Path) -> set[str]:
    """What a file imports, at its head or inside a function, from a room below its own."""
    own = LEVEL[room(module(path))]
    ours = {name for name in imports(path) if name.startswith("fedddp.") and room(name) in LEVEL}
    return {name for name in ours if LEVEL[room(name)] > own}


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down_only(path):
    assert not upward(path)


def test_the_import_rule_can_fail(tmp_path, monkeypatch):
    bad = PACKAGE / "core" / "bad.py"
    monkeypatch.setattr(f"{__name__}.imports", lambda _: {"fedddp.jobs.pool", "fedddp.core.check"})
    assert upward(bad) == {"fedddp.jobs.pool"}


def test_every_file_is_in_a_room():
    assert {room(module(path)) for path in FILES} <= set(LEVEL)


def test_one_module_talks_to_torch_distributed():
    users = {str(p.relative_to(PACKAGE)) for p in FILES if any(n.startswith("torch.distributed") for n in imports(p))}
    assert users <= {"exchange/group.py", "jobs/here.py"}  # here starts torchrun's agent beside GPUs


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
    apart = ("fedddp.__main__", "fedddp.core.triton_kernels", "fedddp.configs", "fedddp.slurm")  # Triton may be missing
    if not found.name.startswith(apart):
        importlib.import_module(found.name)
assert torch.equal(state, torch.get_rng_state())
assert threading.active_count() == before
assert not torch.distributed.is_initialized()
"""
    subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True)


@pytest.mark.parametrize("method", registry.names("method"))
def test_every_method_has_its_yaml(method):
    assert (folder("method") / f"{method}.yaml").exists(), f"configs/method/{method}.yaml names its usual solver"
