"""What can be configured and what it means, from the classes themselves: for `fedddp explain`, errors and the site."""

from collections.abc import Iterator
from dataclasses import MISSING, fields
from importlib import import_module
from inspect import cleandoc
from textwrap import indent
from typing import Any, NamedTuple

import yaml

from fedddp.config.asked import NAME as ASKED
from fedddp.config.loading import experiments, folder
from fedddp.config.own import find
from fedddp.config.schema import BESIDE, PLAIN, RunSettings
from fedddp.core import registry
from fedddp.core.check import hint, shown
from fedddp.core.meanings import meanings
from fedddp.core.plugins import is_path
from fedddp.core.registry import SECTIONS
from fedddp.core.settings import kinds

ABOUT = {
    "data": "what is learned from",
    "split": "which client has which examples",
    "model": "the network",
    "method": "what clients send, and what the server does with it",
    "local": "the clients' solver",
    "federation": "rounds, clients and arithmetic",
    "exchange": "how messages travel",
    "privacy": "noise that hides clients or examples, and what it spends",
    "evaluation": "what is measured, and when",
    "checkpoint": "what is kept on disk, to go on from",
}
NAMED = {  # keys of every section that names a class
    "name": "a name of `fedddp list`, path/file.py:Class or package.module:Class; {section}=NAME is short for it",
    "source": "digest of what is not built in; written by the run",
}


class Setting(NamedTuple):
    key: str  # dotted
    kind: str  # its type
    default: str  # as it is written in a setting
    meaning: str


def of_class(section: str, schema: type[Any]) -> list[Setting]:
    """The settings of a class, in its order."""
    declared, meant = kinds(schema), meanings(schema)
    prefix = f"{section}." if section else ""
    return [
        Setting(f"{prefix}{own.name}", _type(declared[own.name]), _default(own), meant.get(own.name, ""))
        for own in fields(schema)
    ]


def of_section(section: str, name: str = "") -> list[Setting]:
    """The keys of a section, with those of the class `name` where it takes one."""
    if section not in SECTIONS:
        return of_class(section, PLAIN[section])
    beside = of_class(section, BESIDE[section]) if section in BESIDE else []
    return [*of_class(section, find(section, name)[0]), *beside] if name else beside


def of_run() -> list[Setting]:
    """The keys that stand in no section."""
    return of_class("", RunSettings)


def meaning_of(key: str, names: dict[str, str]) -> str:
    """Of a dotted key in a configuration whose sections have these names; "" where nothing is known of it."""
    section, _, own = key.partition(".")
    if not own:
        return next((one.meaning for one in of_run() if one.key == key), "")
    if section in SECTIONS and own in NAMED:
        return NAMED[own].format(section=section)
    if section == ASKED:
        return "what the run was asked for, which repeats it; written by the run"
    if section not in (*SECTIONS, *PLAIN):
        return ""
    found = {one.key: one.meaning for one in of_section(section, names.get(section, ""))}
    while key not in found and "." in key:  # a key of a dictionary, such as exchange.range.all
        key = key.rpartition(".")[0]
    return found.get(key, "")


def explain(word: str) -> str:
    """Everything about a section, a key, a name (`method=bayes_admm`) or an experiment, as text."""
    section, equals, name = word.partition("=")
    section = section.removesuffix(".name") if equals else section
    if equals and section in SECTIONS:
        return _of_name(section, name)
    if not word:
        return "\n".join([*_table(of_run()), *(f"{section:<12} {text}" for section, text in ABOUT.items())])
    if word in ABOUT:
        return "\n".join(_section(word))
    found = [*_keys(word), *_names(word)]
    if found:
        return "\n\n".join(found)
    raise ValueError(f"explain {shown(word)}: neither a key nor a name; {hint(word, _known())}")


def _of_name(section: str, name: str) -> str:
    """What its author says of a class, and its settings."""
    found = registry.look_up(section, name)
    doc = (import_module(found.kind.__module__) if found.plugin is None else found.kind).__doc__ or ""
    lines = [f"{section}={name}", "", indent(cleandoc(doc), "  "), ""] if doc else [f"{section}={name}", ""]
    lines += _table(of_section(section, name)) or ["no settings"]
    usual = usual_solver(name) if section == "method" and not is_path(name) else ""
    return "\n".join([*lines, *([f"usual: {usual}"] if usual else [])])


def usual_solver(method: str) -> str:
    """What configs/method/NAME.yaml sets: other defaults than the class's, and the solver."""
    path = folder("method") / f"{method}.yaml"
    values = yaml.safe_load(path.read_text()) if path.is_file() else {}
    found = [(f"{section}.{key}", value) for section, own in (values or {}).items() for key, value in own.items()]
    return " ".join(f"{key.removesuffix('.name')}={shown(value)}" for key, value in found)


def _section(section: str) -> Iterator[str]:
    yield f"{section}: {ABOUT[section]}"
    yield from _table(of_section(section))
    if section in SECTIONS:
        yield f"choose {section}=NAME from {', '.join(registry.names(section))}"
        yield f"`fedddp explain {section}=NAME` says more"


def every() -> Iterator[tuple[str, Setting]]:
    """(the built-in class that has it, a setting) of all there are; the class is empty where a key always exists."""
    yield from (("", one) for one in of_run())
    for section in PLAIN:
        yield from (("", one) for one in of_section(section))
    for section in SECTIONS:
        yield from (("", one) for one in of_section(section))
        for name in registry.builtin(section):
            yield from ((f"{section}={name}", one) for one in of_class(section, registry.find(section, name)))


def _keys(word: str) -> Iterator[str]:
    """A key, wherever it is: by its whole name, or by its last part."""
    found: dict[Setting, list[str]] = {}
    for owner, one in every():
        if word in (one.key, one.key.rpartition(".")[2]):
            found.setdefault(one, []).append(owner)
    for section in SECTIONS:
        own = word.removeprefix(f"{section}.")
        if own in NAMED and own != word:
            yield f"{word} (str): {NAMED[own].format(section=section)}"
    for one, owners in found.items():
        where = ", ".join(owner for owner in owners if owner)
        yield "\n".join([*_table([one]), *([f"  of {where}"] if where else [])])


def _names(word: str) -> Iterator[str]:
    for section in SECTIONS:
        if word in registry.names(section):
            yield _of_name(section, word)
    if word in experiments():
        yield f"experiment {word}\n\n{indent((folder('experiment') / f'{word}.yaml').read_text(), '  ').rstrip()}"


def _known() -> set[str]:
    keys = {one.key for _, one in every()}
    names = {name for section in SECTIONS for name in registry.names(section)}
    return {*ABOUT, *keys, *names, *experiments()}


def _table(rows: list[Setting]) -> list[str]:
    return [f"{one.key}={one.default} ({one.kind}): {one.meaning or 'its author does not say'}" for one in rows]


def _type(kind: Any) -> str:
    return (
        kind.__name__ if isinstance(kind, type) and not hasattr(kind, "__args__") else str(kind).replace("typing.", "")
    )


def _default(own: Any) -> str:
    if own.default is not MISSING:
        return shown(own.default)
    return shown(own.default_factory()) if own.default_factory is not MISSING else ""
