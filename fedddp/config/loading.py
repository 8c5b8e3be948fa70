"""Configuration: dataclasses are the schema, YAML files and `key=value` the values, left to right.

    the classes' defaults < configs/method/NAME.yaml < the experiment < its `methods: NAME:` block < key=value

Each section with a `name` (data, split, model, method, local) is the class of that name. A method other than the
experiment's own brings its usual solver, and takes over only epochs and batch_size from the experiment's `local`: a
learning rate belongs to a solver. Likewise for a section that is given another name.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from fedddp.config import asked
from fedddp.config.experiments import experiment_file, experiments, folder, is_file, stem
from fedddp.config.own import find
from fedddp.config.resolved import DEFAULT_NAMES, Config, Layer, named, resolve
from fedddp.config.schema import EXTRA, PLAIN, known
from fedddp.config.written import parse, read, sections
from fedddp.core import registry
from fedddp.core.check import hint, shown
from fedddp.core.plugins import is_path
from fedddp.core.registry import SECTIONS
from fedddp.core.settings import kinds
from fedddp.rounds.solver import PosteriorSolver, SamplingSolver, Solver

__all__ = ["Config", "experiments", "folder", "load", "read", "split_words", "stem"]

SHARED = {  # what another solver, split, ... takes over from the one that an earlier layer names
    "local": ("epochs", "batch_size"),
    "split": ("clients", "minimum", "seed", "unseen"),
    "data": ("root", "place"),
    "model": ("seed", "loss", "buffers"),
    "method": (),
}


def load(
    experiment: str | None = None,
    overrides: Sequence[str] = (),
    more: Mapping[str, Any] | None = None,
    given: Mapping[str, Any] | None = None,
) -> Config:
    """The configuration of an experiment (a built-in name or a file; "" for none) with changes.

    Changes are `key=value` words, or values by section (`more`), or the sections' objects themselves (`given`).
    """
    if experiment and is_file(experiment):
        _check_blocks(experiment, experiment_file(experiment).read_bytes())
    return _load(experiment, overrides, more or {}, given or {})


def _load(
    experiment: str | None, overrides: Sequence[str], more: Mapping[str, Any], given: Mapping[str, Any]
) -> Config:
    name = "digits" if experiment is None else experiment
    path = experiment_file(name) if name else None
    file = sections(read(path), str(path)) if path else {}
    command = sections(parse(overrides), "command line")
    python = sections(more, "python")
    block = _blocks(file.pop("methods", None), name)
    told = asked.asked(name, file.pop(asked.NAME, None), overrides, more)
    _keep_measured(file, [command, python, *block.values()])
    own = named(file, "method") or DEFAULT_NAMES["method"]
    method = named(python, "method") or named(command, "method") or own
    if "method" in given:
        method = registry.name_of(given["method"])
    usual = _usual(method)
    if method != own:
        file.pop("method", None)
        file["local"] = _solver(method, given.get("method"), usual, file.get("local") or {})
    layers = [
        (f"configs/method/{method}.yaml", usual),
        (f"experiment {name}", file),
        (f"experiment {name}, methods.{method}", block.get(method, {})),
        ("command line", command),
        ("python", python),
    ]
    _drop_replaced(layers)
    config = resolve(layers, given, path.parent if path else None)
    told["words"] += [f"{section}={config.title(section)}" for section in given]
    config.values[asked.NAME] = told
    return config


def _blocks(methods: Any, name: str) -> dict[str, dict[str, Any]]:
    """The experiment's settings for one method or another."""
    if not isinstance(methods, Mapping | None):
        raise ValueError(f"methods={shown(methods)}: is a section ({name}); write methods: NAME: local: ...")
    found = {}
    for method, block in (methods or {}).items():
        if not is_path(str(method)) and method not in registry.names("method"):
            raise ValueError(f"{name}: methods.{method}: unknown; {hint(method, registry.names('method'))}")
        if not isinstance(block, Mapping | None):
            raise ValueError(f"{name}: methods.{method}={shown(block)}: must hold sections such as local:")
        found[str(method)] = sections(block or {}, f"{name}: methods.{method}")
        if "method" in found[str(method)]:
            found[str(method)]["method"].setdefault("name", str(method))
    return found


@lru_cache
def _check_blocks(experiment: str, content: bytes) -> None:
    """A mistake in a block shows whichever method is run; the built-in experiments' blocks are tested."""
    for method in _blocks(read(experiment_file(experiment)).get("methods"), experiment):
        if not is_path(method):
            try:
                _load(experiment, [f"method={method}"], {}, {})
            except ValueError as error:
                raise ValueError(f"{experiment}: methods.{method}: {error}") from error


def _keep_measured(file: dict[str, Any], others: Sequence[Mapping[str, Any]]) -> None:
    """What cohort_width=auto found changes bits and not the run's hash: only the run itself may write it."""
    recorded = {"seed", *SECTIONS, *PLAIN} <= {*file}
    for layer in (*others, {} if recorded else file):
        if "measured_width" in layer.get("federation", {}):
            raise ValueError(
                f"federation.measured_width={shown(layer['federation']['measured_width'])}: is what a run found; "
                "set federation.cohort_width, to a number or to auto"
            )
        if recorded and "cohort_width" in layer.get("federation", {}):
            file["federation"].pop("measured_width", None)


def split_words(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The experiment, if one is named, and the settings."""
    names = [word for word in words if "=" not in word]
    if len(names) > 1:
        raise ValueError(f"{names[1]!r}: not understood; settings are written key=value")
    return (names[0] if names else None), [word for word in words if "=" in word]


def _usual(method: str) -> dict[str, Any]:
    path = folder("method") / f"{method}.yaml"
    return read(path) if path.is_file() else {}


def _solver(method: str, given: Any, usual: Mapping[str, Any], local: dict[str, Any]) -> dict[str, Any]:
    """The experiment's solver for another method: all of it, if the method has none of its own and it fits."""
    name = named(usual, "local")
    if name is None:
        needs = type(given).needs if given is not None else registry.find("method", method).needs
        if issubclass(registry.find("local", local.get("name", DEFAULT_NAMES["local"])), needs):
            return local
        kinds = ((SamplingSolver, "iasg"), (PosteriorSolver, "ivon"), (Solver, "sgd"))
        name = next(solver for kind, solver in kinds if issubclass(needs, kind))
        return {"name": name} | _carried("local", local, name)
    return _carried("local", local, name)


def _drop_replaced(layers: list[Layer]) -> None:
    """Where a later layer names another solver, model, ..., earlier layers keep only what both share."""
    for section in SECTIONS:
        for later in range(len(layers) - 1, 0, -1):
            name = named(layers[later][1], section)
            for _, values in layers[:later] if name else ():
                before = values.get(section) or {}
                if before:
                    values[section] = _carried(section, before, str(name))


def _carried(section: str, before: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The settings that make sense for another name too; those that were meant for no name in particular all may."""
    if before.get("name") == name:
        return dict(before)
    own = _keys(section, name)
    former = before.get("name", DEFAULT_NAMES[section])
    if former in registry.names(section):
        for key in before:
            known(f"{section}.", key, {"name", *_keys(section, former), *(own if "name" not in before else ())})
    shared = SHARED[section] if "name" in before else own
    return {k: v for k, v in before.items() if k in shared and k in own}


def _keys(section: str, name: str) -> set[str]:
    return {*kinds(find(section, name)[0]), *EXTRA.get(section, {})}
