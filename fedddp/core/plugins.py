"""A class from anywhere: `path/file.py:Class` or `package.module:Class`, and the source that it came from.

What a class does is written in its file and in the files beside it that it imports. Their content, not their place, is
what a run depends on: a digest of it stands in the run's configuration, and a copy in the run's folder.
"""

import ast
import inspect
import sys
from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, NamedTuple

from fedddp.core.trace import told


class Plugin(NamedTuple):
    name: str  # as a configuration keeps it: with the file's absolute path
    made: Any  # what the name stands for
    root: Path  # the folder that its files are named from
    files: tuple[Path, ...]  # its own, and those that it imports from below the same root
    digest: str  # of their content when it was imported

    @classmethod
    def of(cls, name: str, made: Any, root: Path, files: tuple[Path, ...]) -> "Plugin":
        digest = blake2b(digest_size=6)
        for file in files:
            digest.update(str(file.relative_to(root)).encode() if file != files[0] else b"")
            digest.update(file.read_bytes())
        return cls(name, made, root, files, digest.hexdigest())


def is_path(name: str) -> bool:
    """Whether a name in a configuration is one of a class rather than of a list."""
    return ":" in name


def title(name: str) -> str:
    """What people call it: a built-in's name, or the class."""
    return name.rpartition(":")[2]


def load(name: str) -> Plugin:
    """Import it; whatever goes wrong in the user's file is said in one line, with its place."""
    where, _, attribute = name.rpartition(":")
    try:
        if where.endswith(".py"):
            path = Path(where).expanduser().resolve()
            made = getattr(_from_file(path, path.read_bytes()), attribute)
            return Plugin.of(f"{path}:{attribute}", made, path.parent, _closure(path, path.parent))
        module = import_module(where)
        made = getattr(module, attribute)
    except AttributeError as error:
        raise ValueError(f"{where}: has no {attribute}") from error
    except FileNotFoundError as error:
        raise ValueError(f"{where}: no such file (looked for from {Path.cwd()})") from error
    except Exception as error:  # anything may happen in a file of the user's
        raise ValueError(f"{where}: cannot be imported: {told(error)}") from error
    return _of_module(name, made, where)


def of_class(kind: type) -> Plugin:
    """A class that is here already: of a script, a notebook or a package."""
    return _of_module(f"{kind.__module__}:{kind.__qualname__}", kind, kind.__module__)


def _of_module(name: str, made: Any, module: str) -> Plugin:
    file = getattr(sys.modules.get(module), "__file__", None)  # a notebook's has none
    if not file:
        return Plugin.of(name, made, Path.cwd(), ())
    path = Path(file).resolve()
    root = path.parents[module.count(".") + (path.stem == "__init__")]
    inside = module.partition(".")[0] if module != "__main__" else ""
    return Plugin.of(name, made, root, _closure(path, root, inside))


@lru_cache
def _from_file(path: Path, content: bytes) -> Any:
    """The file as a module; anew when its content has changed."""
    name = f"fedddp_plugin_{path.stem}_{blake2b(bytes(path) + content, digest_size=6).hexdigest()}"
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickles look there
    if str(path.parent) not in sys.path:  # files beside it, as in a script
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _closure(path: Path, root: Path, inside: str = "") -> tuple[Path, ...]:
    """The file and all that it imports from below root, or from the package `inside` it; the file first."""
    found, waiting = [], [path]
    while waiting:
        file = waiting.pop()
        if file not in found:
            found.append(file)
            waiting += [near for near in _imported(file, root, inside) if near not in found]
    return (found[0], *sorted(found[1:]))


def _imported(file: Path, root: Path, inside: str) -> Iterator[Path]:
    for node in ast.walk(ast.parse(file.read_bytes())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = file.parent.relative_to(root).parts
                base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        for name in names:
            if name and (not inside or name.partition(".")[0] == inside):
                yield from _file_of(root.joinpath(*name.split(".")))


def _file_of(stem: Path) -> Iterator[Path]:
    for path in (stem.with_suffix(".py"), stem / "__init__.py"):
        if path.is_file():
            yield path


def importable(name: str) -> bool:
    """Whether `package.module:Class` names a module that is there; find_spec of a submodule imports its package."""
    top, *rest = name.rpartition(":")[0].split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError):
        return False
    if spec is None or not rest:
        return spec is not None
    folders = spec.submodule_search_locations or ()
    return any(True for folder in folders for _ in _file_of(Path(folder).joinpath(*rest)))


def written(kind: Any) -> str:
    """The lines of a class or function of a script or notebook, and of those of the same module that it names."""
    seen: dict[str, str] = {}
    waiting = [kind]
    while waiting:
        part = waiting.pop()
        if part.__qualname__ in seen:
            continue
        functions = [part] if inspect.isfunction(part) else _functions(part)
        seen[part.__qualname__] = "".join(map(_lines, functions))
        scope = vars(sys.modules[part.__module__]) if part.__module__ in sys.modules else {}
        named = {name for function in functions for name in _names(function.__code__)}
        near = [scope[name] for name in named if name in scope]
        near += [] if inspect.isfunction(part) else part.__mro__[1:]
        waiting += [
            n for n in near if (inspect.isclass(n) or inspect.isfunction(n)) and n.__module__ == kind.__module__
        ]
    return "".join(f"{name}\n{lines}" for name, lines in sorted(seen.items()))


def _functions(kind: type) -> list[Any]:
    """Of a class, in the order of their names; behind decorators, too."""
    found = []
    for _, value in sorted(vars(kind).items()):
        inner = value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        if inspect.isfunction(inner) and inner.__module__ == kind.__module__:
            found.append(inspect.unwrap(inner))
    return found


def _names(code: Any) -> set[str]:
    """What a function names, functions inside it too."""
    inner = (one for one in code.co_consts if inspect.iscode(one))
    return set(code.co_names).union(*map(_names, inner))


def _lines(function: Any) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):  # typed at a prompt: what it was compiled to
        return repr((function.__code__.co_code, function.__code__.co_consts))
