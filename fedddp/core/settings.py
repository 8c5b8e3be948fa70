"""A setting's value as its declared type, or one line that says why not: the same rules for every key.

    int      64 bits; a boolean or a fraction is none
    float    finite, and 0 or of a size that float32 can hold: 1.2e-38 to 3.4e38
    bool     true, false and YAML's other words for them
    str      any text; a number is taken as its text
    X | Y    the first that fits, None for null

`???` and `${...}`, which stand for values from elsewhere in the library that reads YAML, are refused: an experiment's
file travels, and must neither have gaps nor fetch what is in somebody's environment.
"""

from collections.abc import Mapping
from dataclasses import fields
from math import isfinite
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from fedddp.core.check import check, shown

LARGEST = 3.4e38  # of float32
SMALLEST = 1.2e-38
WORDS = {"true": True, "yes": True, "on": True, "y": True, "false": False, "no": False, "off": False, "n": False}


def settled(key: str, kind: Any, value: Any) -> Any:
    """The value of the setting `key`, whose type is `kind`; a kind that is not listed above is left to the caller."""
    if kind is Any:
        return _anything(key, value)
    _refuse_standing_in(key, value)
    if get_origin(kind) in (Union, UnionType):
        return _one_of(key, get_args(kind), value)
    if value is None:
        empty = f"; write {key}='' for an empty one" if kind is str else ""
        raise ValueError(f"{key}=null: must be {_described(kind)}{empty}")
    if kind in RULES:
        return RULES[kind](key, value)
    if get_origin(kind) is list:
        check(key, value, isinstance(value, list | tuple), _described(kind))
        return [settled(key, get_args(kind)[0], one) for one in value]
    if get_origin(kind) is dict:
        check(key, value, isinstance(value, Mapping), f"settings of its own: {key}.<name>=<value>")
        return {_name(key, name): settled(f"{key}.{name}", get_args(kind)[1], one) for name, one in value.items()}
    return value


def kinds(schema: type[Any]) -> dict[str, Any]:
    """The declared type of each key of a dataclass."""
    names = [own.name for own in fields(schema)]
    try:
        hints = get_type_hints(schema)
    except NameError:  # a type that only a checker imports
        hints = {own.name: own.type for own in fields(schema)}
    return {name: hints[name] for name in names}


def _integer(key: str, value: Any) -> int:
    try:
        fine = isinstance(value, int | str) and not isinstance(value, bool)
        number = int(value) if fine else 0
    except ValueError:
        fine = False
    check(key, value, fine, _described(int))
    check(key, value, -(2**63) <= number < 2**63, "an integer of 64 bits")
    return number


def _real(key: str, value: Any) -> float:
    try:
        fine = isinstance(value, int | float | str) and not isinstance(value, bool)
        number = float(value) if fine else 0.0
    except OverflowError:
        number = float("inf")
    except ValueError:
        fine = False
    check(key, value, fine, _described(float))
    check(key, value, isfinite(number), "a finite number")
    check(key, value, number == 0 or SMALLEST <= abs(number) <= LARGEST, "0, or between 1.2e-38 and 3.4e38 in size")
    return number


def _truth(key: str, value: Any) -> bool:
    if isinstance(value, str):
        value = WORDS.get(value.lower(), value)
    check(key, value, isinstance(value, bool) or (isinstance(value, int) and value in (0, 1)), _described(bool))
    return bool(value)


def _text(key: str, value: Any) -> str:
    check(key, value, not isinstance(value, bool), "of type str; a text such as 'yes' is written in quotes")
    check(key, value, isinstance(value, str | int | float), _described(str))
    check(key, value, not isinstance(value, str) or "\0" not in value, "a text without null bytes")
    return value if isinstance(value, str) else shown(value)


RULES = {int: _integer, float: _real, bool: _truth, str: _text}


def _one_of(key: str, members: tuple[Any, ...], value: Any) -> Any:
    """By the type that the value has; a whole number is a float, too."""
    if value is None and NoneType in members:
        return None
    rest = [kind for kind in members if kind is not NoneType]
    if len(rest) == 1:
        return settled(key, rest[0], value)
    own = float if type(value) is int and int not in rest else type(value)
    if own in rest:
        return settled(key, own, value)
    if all(kind in RULES for kind in rest):
        raise ValueError(f"{key}={shown(value)}: must be {' or '.join(map(_described, rest))}")
    return value  # a type of the user's own


def _anything(key: str, value: Any) -> Any:
    """Plain values as they are, their numbers held to the same rules."""
    _refuse_standing_in(key, value)
    if isinstance(value, Mapping):
        return {_name(key, name): _anything(f"{key}.{name}", one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_anything(key, one) for one in value]
    kind = next((kind for kind in (bool, int, float, str) if isinstance(value, kind)), None)
    return value if kind is None else RULES[kind](key, value)


def _name(key: str, name: object) -> str:
    if not isinstance(name, str):
        raise ValueError(f"{key}.{shown(name)}: the names of settings are texts")
    return name


def _refuse_standing_in(key: str, value: Any) -> None:
    if isinstance(value, str) and value == "???":
        raise ValueError(f"{key}=???: stands for a value that is missing; write the value, or leave the key out")
    if isinstance(value, str) and "${" in value:
        raise ValueError(f"{key}={shown(value)}: ${{...}} is not filled in here; write the value itself")


def _described(kind: Any) -> str:
    """`of type int`, and so on."""
    return f"of type {getattr(kind, '__name__', kind)}" if get_origin(kind) is None else f"of type {kind}"
