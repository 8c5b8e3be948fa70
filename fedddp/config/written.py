"""What a user wrote, as plain values: YAML files, and key=value words. Nothing in them is filled in from elsewhere."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from fedddp.config.schema import PLAIN
from fedddp.core.check import first_line, one_line, shown
from fedddp.core.registry import SECTIONS
from fedddp.core.settings import settled


def read(path: Path) -> dict[str, Any]:
    """A YAML file of sections."""
    found = load(path)
    if not isinstance(found, dict):
        raise ValueError(f"{path}: must hold sections such as data:, model:, method:")
    return {str(k): v for k, v in found.items()}


def load(path: Path) -> Any:
    """A YAML file; whatever is wrong with it is said in one line."""
    try:
        return OmegaConf.to_container(OmegaConf.load(path))
    except Exception as error:  # the YAML library's own error types are not public
        raise ValueError(f"{path}: not a readable YAML file: {_why(error)}") from error


def parse(words: Sequence[str]) -> dict[str, Any]:
    """key=value words; `method=NAME` stands for `method.name=NAME`, likewise the other named sections."""
    parsed: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ValueError(
                f"{shown(word)!r}: not understood; settings are written key=value, as in federation.rounds=50"
            )
        *place, last = f"{key}.name".split(".") if key in SECTIONS else key.split(".")
        into = parsed
        for part in place:
            into = into.setdefault(part, {})
            if not isinstance(into, dict):
                raise ValueError(f"{shown(word)}: {part} was given a value of its own before; write one of the two")
        into[last] = _value(key, text)
    return parsed


def _value(key: str, text: str) -> Any:
    settled(key, str, text)
    try:
        return OmegaConf.to_container(OmegaConf.from_dotlist([f"value={text}"]))["value"]  # type: ignore[call-overload,index]
    except Exception as error:  # as above
        raise ValueError(f"{key}={shown(text)}: not understood as YAML: {_why(error)}") from error


def sections(layer: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Sections are mappings; a name alone stands for the section of that name."""
    found = dict(layer)
    for section in {*SECTIONS, *PLAIN} & {*found}:
        value = found[section]
        if section in SECTIONS and isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, Mapping | None):
            raise ValueError(f"{section}={shown(value)}: is a section ({where}); write {section}.<key>=<value>")
        found[section] = dict(value or {})
        if "name" in found[section] and section in SECTIONS:
            _check_name(section, found[section]["name"])
    return found


def _check_name(section: str, name: object) -> None:
    if not isinstance(name, str) or not name.isprintable():
        raise ValueError(f"{section}={shown(name)}: must be a name; `fedddp list` shows them")


def _why(error: Exception) -> str:
    """What YAML says, with the key or the line."""
    problem, mark = getattr(error, "problem", None), getattr(error, "problem_mark", None)
    if problem is None:
        key = getattr(error, "full_key", None)
        return f"{shown(key)}: {first_line(error)}" if key else first_line(error)
    return one_line(f"{problem}{f' in line {mark.line + 1}' if mark is not None else ''}")
