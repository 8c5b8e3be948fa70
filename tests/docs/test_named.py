"""What pages name in passing is there: files of the tree, settings, and names of the package."""

import importlib
import re

import pytest

from fedddp.config.explain import every
from fedddp.core.registry import SECTIONS
from tests.docs.blocks import FENCE, TREE, pages

FILES = re.compile(r"(?<![\w/.-])((?:fedddp|tests|docs|configs|slurm|launch)/[\w/.*-]*\w)")
DOTTED = re.compile(r"(?<![\w/.-])fedddp((?:\.[A-Za-z_]+)+)(?![\w/(]*\.zsh)")
MADE = ("docs/NAME.md", "configs/experiment/NAME.yaml", "configs/method/NAME.yaml", "fedddp/methods/NAME.py")
PROSE = [(page, FENCE.sub("", page.read_text())) for page in pages()]


@pytest.mark.parametrize(("page", "text"), PROSE, ids=lambda value: getattr(value, "name", ""))
def test_files_are_there(page, text):
    found = set(FILES.findall(text)) - set(MADE)
    assert not [name for name in found if not ((TREE / f"{name}.py").exists() or list(TREE.glob(name)))]


@pytest.fixture(scope="module")
def known() -> set[str]:
    return {one.key for _, one in every()} | {f"{section}.name" for section in SECTIONS}


@pytest.mark.parametrize(("page", "text"), PROSE, ids=lambda value: getattr(value, "name", ""))
def test_settings_are_there(page, text, known):
    sections = "|".join({key.partition(".")[0] for key in known if "." in key})
    named = re.compile(rf"(?<![\w./-])((?:{sections})\.[a-z_0-9.]+)(?![\w/])")
    found = {key for code in re.findall(r"`([^`\n]+)`", text) for key in named.findall(code)}
    files = {key for key in found if key.endswith((".py", ".json"))}
    inner = {key for key in found if key.rpartition(".")[0] in known}  # of a mapping: exchange.range.theta
    assert not found - known - files - inner


@pytest.mark.parametrize(("page", "text"), PROSE, ids=lambda value: getattr(value, "name", ""))
def test_names_of_the_package_are_there(page, text):
    for dotted in set(DOTTED.findall(text)):
        *path, last = f"fedddp{dotted}".split(".")
        assert _has(".".join(path), last), f"fedddp{dotted}"


def _has(path: str, name: str) -> bool:
    """A module or a name in it; a class's own name as well."""
    try:
        importlib.import_module(f"{path}.{name}")
    except ImportError:
        module, _, inner = path.rpartition(".")
        try:
            return hasattr(importlib.import_module(path), name)
        except ImportError:
            return hasattr(getattr(importlib.import_module(module), inner, None), name)
    return True
