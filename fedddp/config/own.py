"""What is not built in: a class of the user's by its name, or an object of the user's; and how a run records it.

    method:
      name: /home/me/my_method.py:Mine      where it was
      source: 1f2e3d4c5b6a                  a digest of its content, which is part of the run's hash
      strength: 0.1                         its settings

A copy of the files lies in the run's folder, in source/SECTION/. It serves when the file itself has changed or gone.
"""

import inspect
import shutil
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from fedddp.core import registry
from fedddp.core.model import Model
from fedddp.core.plugins import Plugin, of_class, written
from fedddp.core.registry import Found

FOLDER = "source"


@dataclass
class Kept:
    """The files behind a configuration, by section."""

    plugins: dict[str, Plugin] = field(default_factory=dict)

    def copy(self, folder: Path, anew: bool = False) -> None:
        """Into a run's folder, once; or `anew`, as long as nothing was made with what is there."""
        for section, plugin in self.plugins.items():
            for file in plugin.files:
                target = folder / FOLDER / section / file.relative_to(plugin.root)
                if not target.exists() or (anew and target.resolve() != file.resolve()):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(file, target)


class OwnModule(Model):
    """A torch module by its class, built with model.args."""

    args: dict[str, Any] = field(default_factory=dict)  # what the module's class is called with, by name
    _kind: ClassVar[type[nn.Module]]

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        try:
            return self._kind(**self.args)
        except TypeError as error:
            name = self._kind.__qualname__
            raise ValueError(f"model={name}: cannot be built with model.args={self.args}: {error}") from error


def find(
    section: str, name: str, source: str = "", folder: Path | None = None, kept: Kept | None = None
) -> tuple[type[Any], dict[str, Any]]:
    """The class that a section names, and how its name is recorded.

    `source`: the digest that a run's record asks for. A file that has another one by now is not what the run was made
    with; then its copy in the run's `folder` is taken.
    """
    found = _look_up(section, name, source, folder)
    kind = found.kind
    if section == "model" and issubclass(kind, nn.Module):
        kind = type(kind.__name__, (OwnModule,), {"_kind": kind, "__module__": kind.__module__})
    if found.plugin is None:
        return kind, {"name": found.name}
    if kept is not None:
        kept.plugins[section] = found.plugin
    return kind, {"name": found.name, "source": source or found.plugin.digest}


def _look_up(section: str, name: str, source: str, folder: Path | None) -> Found:
    if name == "given":
        raise ValueError(
            f"{section}=given: this run was started in Python with an object for its {section}; go on with it there, "
            "by the same call of fedddp.run"
        )
    copy = folder / FOLDER / section if folder is not None and source else None
    try:
        found = registry.look_up(section, name)
    except ValueError:
        if copy is None or not copy.is_dir():
            raise
        return _copied(section, name, source, copy)
    if found.plugin is None or not source or found.plugin.digest == source:
        return found
    if copy is None or not copy.is_dir():
        raise ValueError(
            f"{section}={name}: has changed since this run was made ({section}.source={source}, "
            f"now {found.plugin.digest}); bring the file back to what it was, or start a run anew"
        )
    return _copied(section, name, source, copy)


def _copied(section: str, name: str, source: str, copy: Path) -> Found:
    """The class from the run's own copy of its file."""
    where, _, kind = name.rpartition(":")
    relative = Path(where).name if where.endswith(".py") else f"{where.replace('.', '/')}.py"
    found = registry.look_up(section, f"{copy / relative}:{kind}")
    if found.plugin is None or found.plugin.digest != source:
        raise ValueError(
            f"{section}={name}: neither the file nor its copy {copy / relative} is what the run was made with"
        )
    return found._replace(name=name)


class Recorded(ABC):
    """An object that says itself how it is recorded."""

    @abstractmethod
    def recorded(self) -> dict[str, Any]:
        """Plain values, with `name`."""


def record(part: Any) -> dict[str, Any]:
    """An object as a configuration shows it: its class, the digest of its source, and its settings."""
    if isinstance(part, Recorded):
        return part.recorded()
    name = registry.name_of(part)
    head: dict[str, Any] = {"name": name}
    if name == type(part).__qualname__:  # not built in
        head = {"name": f"{type(part).__module__}:{name}", "source": digest_of(type(part))}
    settings = {own.name: plain(vars(part)[own.name]) for own in fields(part)}
    return head | settings


def digest_of(kind: type) -> str:
    """Of what a class does: of its files, or of its own lines where it stands in a script or a notebook."""
    plugin = of_class(kind)
    if plugin.files and kind.__module__ != "__main__":
        return plugin.digest
    return blake2b(written(kind).encode(), digest_size=6).hexdigest()


def plain(value: Any) -> Any:
    """A setting as YAML can say it; of a tensor its shape and a digest, of anything else what it prints."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor):
        return {"shape": list(value.shape), "digest": digest_of_tensors(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    if inspect.isclass(value) or inspect.isfunction(value):
        return f"{value.__module__}:{value.__qualname__}"
    return repr(value)


def digest_of_tensors(*tensors: Tensor) -> str:
    digest = blake2b(digest_size=8)
    for tensor in tensors:
        digest.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
