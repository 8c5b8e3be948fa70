"""The folder is the registry: `fedavg` in `fedddp/methods/` is `fedddp/methods/fedavg.py`."""

from importlib import import_module
from pkgutil import iter_modules
from typing import Any

# config section -> (folder, the dataclass each file there defines, what a list of them is called)
SECTIONS = {
    "method": ("methods", "Method"),
    "local": ("local", "Solver"),
    "model": ("models", "Model"),
    "data": ("data", "Source"),
    "split": ("splits", "Split"),
}


def names(section: str) -> list[str]:
    """Every name that can stand in `section.name`."""
    package = import_module(f"fedddp.{SECTIONS[section][0]}")
    found = (module.name for module in iter_modules(package.__path__) if not module.name.startswith("_"))
    return sorted(found)


def find(section: str, name: str) -> type[Any]:
    """The dataclass that `section.name=name` stands for; the error lists what exists."""
    folder, cls = SECTIONS[section]
    if name not in names(section):
        raise ValueError(f"{section}.name={name}: unknown; choose one of {', '.join(names(section))}")
    found: type[Any] = getattr(import_module(f"fedddp.{folder}.{name}"), cls)
    return found


def describe(section: str, name: str) -> str:
    """The first line of the file's docstring."""
    doc = import_module(f"fedddp.{SECTIONS[section][0]}.{name}").__doc__ or ""
    return doc.strip().splitlines()[0] if doc.strip() else ""
