"""What can be named in a configuration.

fedavg                     built in: fedddp/methods/fedavg.py, whose class is `Method`; the folder is the registry
my_method                  registered by an installed distribution's entry point, in the group fedddp.methods
path/file.py:Class         a file of one's own, from the current folder
package.module:Class       anything that can be imported
"""

from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from pkgutil import iter_modules
from typing import Any, NamedTuple

from fedddp.core import plugins
from fedddp.core.check import hint
from fedddp.core.plugins import Plugin


class Section(NamedTuple):
    folder: str  # of the built-in ones; entry points are in the group fedddp.FOLDER
    kind: str  # the class that each file there defines
    contract: str  # what it must derive from
    public: str  # the contract's name for users


SECTIONS = {
    "method": Section("methods", "Method", "fedddp.rounds.method:Method", "fedddp.Method"),
    "local": Section("local", "Solver", "fedddp.rounds.solver:Solver", "fedddp.PointSolver or another solver"),
    "model": Section("models", "Model", "fedddp.core.model:Model", "fedddp.Model or torch.nn.Module"),
    "data": Section("data", "Source", "fedddp.core.data:Source", "fedddp.Source"),
    "split": Section("splits", "Split", "fedddp.core.shards:Split", "fedddp.Split"),
}


class Found(NamedTuple):
    """What a name stands for."""

    name: str  # as a configuration keeps it
    kind: type[Any]
    origin: str  # fedddp, an installed distribution, or a path
    plugin: Plugin | None  # None: built in


def builtin(section: str) -> list[str]:
    package = import_module(f"fedddp.{SECTIONS[section].folder}")
    return sorted(module.name for module in iter_modules(package.__path__) if not module.name.startswith("_"))


@cache
def installed(section: str) -> dict[str, EntryPoint]:
    """What installed distributions register; a built-in name cannot be taken."""
    found = entry_points(group=f"fedddp.{SECTIONS[section].folder}")
    return {point.name: point for point in found if point.name not in builtin(section)}


def names(section: str) -> list[str]:
    """Every short name that can stand in `section.name`."""
    return sorted([*builtin(section), *installed(section)])


def look_up(section: str, name: str) -> Found:
    """What `section=name` stands for; one line for a name that is unknown or no class of the right kind."""
    if name in builtin(section):
        found = import_module(f"fedddp.{SECTIONS[section].folder}.{name}")
        return Found(name, vars(found)[SECTIONS[section].kind], "fedddp", None)
    if not plugins.is_path(name) and name not in installed(section):
        raise ValueError(
            f"{section}={name}: unknown; {hint(name, names(section))} (or path/file.py:Class, or package.module:Class)"
        )
    point = installed(section).get(name)
    try:
        plugin = plugins.load(point.value if point else name)
    except ValueError as error:
        raise ValueError(f"{section}={name}: {error}") from error.__cause__
    if not _fits(section, plugin.made):
        raise ValueError(f"{section}={name}: must be a class that derives from {SECTIONS[section].public}")
    if point is None:
        return Found(plugin.name, plugin.made, plugin.name.rpartition(":")[0], plugin)
    assert point.dist is not None
    return Found(name, plugin.made, f"{point.dist.name} {point.dist.version}", plugin)


def find(section: str, name: str) -> type[Any]:
    """The class that `section=name` stands for."""
    return look_up(section, name).kind


def _fits(section: str, made: Any) -> bool:
    module, _, kind = SECTIONS[section].contract.partition(":")
    wanted: list[type] = [vars(import_module(module))[kind]]
    if section == "model":
        from torch import nn

        wanted.append(nn.Module)
    return isinstance(made, type) and issubclass(made, tuple(wanted))


def name_of(part: object) -> str:
    """A built-in's name, or the class of one from elsewhere."""
    module, kind = type(part).__module__, type(part).__qualname__
    folders = {f"fedddp.{section.folder}": section.kind for section in SECTIONS.values()}
    folder, _, name = module.rpartition(".")
    return name if folders.get(folder) == kind else kind


def gone(section: str, name: str) -> bool:
    """Whether a run's record names something that is not there any more; nothing is imported to find out."""
    if not plugins.is_path(name):
        return name not in names(section)
    path = name.rpartition(":")[0]
    return not Path(path).is_file() if path.endswith(".py") else not plugins.importable(name)


def describe(section: str, name: str) -> str:
    """The first line of what its author says of it."""
    found = look_up(section, name)
    doc = (import_module(found.kind.__module__) if found.plugin is None else found.kind).__doc__ or ""
    return doc.strip().splitlines()[0] if doc.strip() else ""
