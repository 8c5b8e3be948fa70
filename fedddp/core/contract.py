"""What people add to fedddp is a class: its annotated fields are settings, its public functions are hooks."""

from abc import ABCMeta
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from inspect import get_annotations, isfunction
from typing import Any, dataclass_transform

from fedddp.core.check import hint


@dataclass_transform(field_specifiers=(field,))
class Contract(metaclass=ABCMeta):  # noqa: B024  its subclasses have the abstract hooks
    """The base of every contract. A subclass is a dataclass without saying so.

    A public name that is no hook is refused when the class is defined: it is a misspelt hook, or a helper, whose name
    begins with `_`. `class Wider(SomeContract, extends=True)` may add public names: hooks for its own subclasses.
    """

    def __init_subclass__(cls, extends: bool = False, **more: Any) -> None:
        super().__init_subclass__(**more)
        if not extends:
            _refuse_unknown(cls)
        dataclass(cls)
        for own in fields(cls):  # type: ignore[arg-type]  # so that an explicit @dataclass above the class finds the factory again
            if own.name in get_annotations(cls) and own.name not in cls.__dict__:
                setattr(cls, own.name, own)


def _refuse_unknown(cls: type) -> None:
    known = {name for base in cls.__mro__[1:] for name in (*vars(base), *get_annotations(base))}
    hooks = {name for name in known if not name.startswith("_")}
    settings = set(_settings(cls))
    for name in settings & {n for base in cls.__mro__[1:] for n, v in vars(base).items() if isfunction(v)}:
        raise TypeError(f"{cls.__qualname__}.{name}: is a hook of the contract and cannot be a setting; rename it")
    for name in (*vars(cls), *get_annotations(cls)):
        if name.startswith("_") or name in hooks or name in settings:
            continue
        what = "a helper's name begins with _, a setting is annotated"
        raise TypeError(f"{cls.__qualname__}.{name}: not part of the contract ({what}); {hint(name, hooks)}")


def _settings(cls: type) -> Iterator[str]:
    """Annotated names that are no ClassVar; annotations may be text."""
    for name, kind in get_annotations(cls).items():
        if "ClassVar" not in (kind if isinstance(kind, str) else repr(kind)).split("[")[0]:
            yield name
