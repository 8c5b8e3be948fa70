"""What a name stands for: a method, a solver, a split, a data source or a model."""

from collections.abc import Sequence

from fedddp.config import loading as configuration
from fedddp.core import plugins, registry
from fedddp.core.check import hint

KINDS = {"method": "method", "local": "solver", "split": "split", "data": "data source", "model": "model"}
FIRST = {"sampling": "fedpa", "posterior": "pvi"}  # the method that a kind of solver is checked with; else fedavg


def guess(what: str) -> str:
    """The section of the configuration in which `what` can stand."""
    if plugins.is_path(what):
        return _of_class(what)
    found = [section for section in KINDS if what in registry.names(section)]
    if len(found) > 1:
        choices = " or ".join(f"--kind {section}" for section in found)
        raise ValueError(f"{what}: is a {' and a '.join(KINDS[section] for section in found)}; say which: {choices}")
    if not found:
        known = {name for section in KINDS for name in registry.names(section)}
        raise ValueError(f"{what}: unknown; {hint(what, known)} (or name path/file.py:Class, or package.module:Class)")
    return found[0]


def _of_class(what: str) -> str:
    """By what the class derives from; an error in its file is raised here."""
    plugins.load(what)
    for section in KINDS:
        try:
            registry.find(section, what)
        except ValueError:
            continue
        return section
    bases = ", ".join(section.public for section in registry.SECTIONS.values())
    raise ValueError(f"{what}: is none of these; derive it from {bases}")


def with_solver(what: str, words: Sequence[str]) -> list[str]:
    """A method with a solver of the kind it needs, where the words name none."""
    given = [f"method={what}", *words]
    if _named("local", words) or what in registry.builtin("method"):
        return given
    kind = registry.find("method", what).needs.kind
    usual = {"sampling": "iasg", "posterior": "ivon"}.get(kind, "sgd")
    return [given[0], f"local={usual}", *words]


def with_method(what: str, words: Sequence[str]) -> list[str]:
    """A solver with the first method that it fits, where the words name none."""
    given = [f"local={what}", *words]
    if _named("method", words):
        return given
    usual = FIRST.get(registry.find("local", what).kind, "fedavg")
    for method in (usual, *registry.builtin("method")):
        tried = [f"method={method}", *given]
        try:
            config = configuration.load(None, tried)
        except ValueError:  # may be the user's mistake: then the last one says so
            continue
        if not config.method.mismatch(config.local):
            return tried
    return [f"method={usual}", *given]


def _named(section: str, words: Sequence[str]) -> bool:
    return any(word.startswith((f"{section}=", f"{section}.name=")) for word in words)
