"""Configuration: dataclasses are the schema, YAML files and `key=value` the values, left to right.

    the classes' defaults < configs/method/NAME.yaml < the experiment < its `methods: NAME:` block < key=value

Each section with a `name` (data, split, model, method, local) is the class of that name. A method other than the
experiment's own brings its usual solver, and takes over only epochs and batch_size from the experiment's `local`: a
learning rate belongs to a solver. Likewise for a section that is given another name.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

from fedddp.core import registry
from fedddp.core.check import hint, shown
from fedddp.core.data import Source
from fedddp.core.model import Model
from fedddp.core.plugins import is_path, title
from fedddp.core.registry import SECTIONS
from fedddp.core.settings import kinds, settled
from fedddp.core.shards import Split
from fedddp.rounds.compression import ExchangeSettings
from fedddp.rounds.method import Method
from fedddp.rounds.privacy import PrivacySettings
from fedddp.rounds.solver import PosteriorSolver, SamplingSolver, Solver
from fedddp.runs import asked
from fedddp.runs.own import Kept, find, record
from fedddp.runs.schema import (
    EXTRA,
    PLAIN,
    CheckpointSettings,
    EvaluationSettings,
    FederationSettings,
    beside,
    flatten,
    known,
    relevant,
    typed,
    unknown,
)
from fedddp.runs.written import parse, read, sections

__all__ = ["Config", "experiments", "folder", "load", "read", "split_words", "stem"]

SHARED = {  # what another solver, split, ... takes over from the one that an earlier layer names
    "local": ("epochs", "batch_size"),
    "split": ("clients", "minimum", "seed", "unseen"),
    "data": ("root", "place"),
    "model": ("seed", "loss", "buffers"),
    "method": (),
}
DEFAULT_NAMES = {"data": "digits", "split": "dirichlet", "model": "mlp", "method": "fedavg", "local": "sgd"}

Layer = tuple[str, dict[str, Any]]  # where it comes from, and its values by section


@dataclass
class Config:
    """A resolved configuration: plain values, where each came from, and the objects they stand for."""

    values: dict[str, Any]
    origin: dict[str, str]
    data: Source
    split: Split
    model: Model
    method: Method[Any, Any, Any]
    local: Solver
    federation: FederationSettings
    exchange: ExchangeSettings
    privacy: PrivacySettings
    evaluation: EvaluationSettings
    checkpoint: CheckpointSettings
    kept: Kept = field(default_factory=Kept)  # the source of what is not built in

    def __getitem__(self, key: str) -> Any:
        found: Any = self.values
        for part in key.split("."):
            found = found[part]
        return found

    @property
    def seed(self) -> int:
        return int(self.values["seed"])

    def seed_of(self, section: str) -> int:
        own = self.values[section].get("seed")
        return self.seed if own is None else int(own)

    def title(self, section: str) -> str:
        """What people call the section's choice: a built-in's name, or the class."""
        return title(str(self.values[section]["name"]))

    @property
    def relevant(self) -> dict[str, Any]:
        """Everything that can change a result, by dotted key."""
        return relevant(self.values)

    @property
    def hash(self) -> str:
        return blake2b(json.dumps(self.relevant, sort_keys=True).encode(), digest_size=6).hexdigest()

    @property
    def folder_name(self) -> str:
        """A run's folder is named by its configuration: METHOD-SETTINGS-seedN-HASH."""
        return f"{self.run_name}-{self.hash}"

    @property
    def chosen(self) -> dict[str, Any]:
        """The settings that were named beside the experiment and can change a result."""
        return asked.chosen(self.values, self.relevant)

    @property
    def told_apart(self) -> dict[str, Any]:
        """Method, seed, and what else was named: the columns by which runs are compared."""
        rest = {key: value for key, value in self.chosen.items() if key not in ("method.name", "seed")}
        return {"method": self.title("method"), "seed": self.seed, **rest}

    @property
    def run_name(self) -> str:
        """By which people tell runs apart."""
        return asked.name(self.title("method"), self.chosen, self.seed)


def load(
    experiment: str | None = None,
    overrides: Sequence[str] = (),
    more: Mapping[str, Any] | None = None,
    given: Mapping[str, Any] | None = None,
) -> Config:
    """The configuration of an experiment (a built-in name or a file; "" for none) with changes.

    Changes are `key=value` words, or values by section (`more`), or the sections' objects themselves (`given`).
    """
    if experiment and _is_file(experiment):
        _check_blocks(experiment, _experiment_file(experiment).read_bytes())
    return _load(experiment, overrides, more or {}, given or {})


def _load(
    experiment: str | None, overrides: Sequence[str], more: Mapping[str, Any], given: Mapping[str, Any]
) -> Config:
    name = "digits" if experiment is None else experiment
    path = _experiment_file(name) if name else None
    file = sections(read(path), str(path)) if path else {}
    command = sections(parse(overrides), "command line")
    python = sections(more, "python")
    block = _blocks(file.pop("methods", None), name)
    told = asked.asked(name, file.pop(asked.NAME, None), overrides, more)
    _keep_measured(file, [command, python, *block.values()])
    own = _named(file, "method") or DEFAULT_NAMES["method"]
    method = _named(python, "method") or _named(command, "method") or own
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
    config = _resolve(layers, given, path.parent if path else None)
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
    for method in _blocks(read(_experiment_file(experiment)).get("methods"), experiment):
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


def stem(experiment: str) -> str:
    """The name of an experiment: of its file without the ending."""
    return Path(experiment).stem


def folder(kind: str) -> Path:
    """Where the built-in YAML files of a kind lie: in the installed package, or at the top of the source tree."""
    package = Path(__file__).parent.parent
    inside = package / "configs" / kind
    return inside if inside.is_dir() else package.parent / "configs" / kind


def experiments() -> list[str]:
    return sorted(path.stem for path in folder("experiment").glob("*.yaml"))


def _usual(method: str) -> dict[str, Any]:
    path = folder("method") / f"{method}.yaml"
    return read(path) if path.is_file() else {}


def _solver(method: str, given: Any, usual: Mapping[str, Any], local: dict[str, Any]) -> dict[str, Any]:
    """The experiment's solver for another method: all of it, if the method has none of its own and it fits."""
    name = _named(usual, "local")
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
            name = _named(layers[later][1], section)
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


def _resolve(layers: Sequence[Layer], given: Mapping[str, Any], folder: Path | None) -> Config:
    values, origin = _merge(layers)
    objects: dict[str, Any] = {}
    kept = Kept()
    for section in (*SECTIONS, *PLAIN):
        own = dict(values.get(section) or {})
        extra = beside(section, own)
        head: dict[str, Any] = {}
        resolved: dict[str, Any] = {}
        plain = {key: value for key, value in own.items() if key not in extra}
        if section in given:
            objects[section] = given[section]
            head = record(given[section])
        elif section in SECTIONS:
            name = str(plain.pop("name", DEFAULT_NAMES[section]))
            source = settled(f"{section}.source", str, plain.pop("source", ""))
            schema, head = find(section, name, source, folder, kept)
            if source and "source" not in head:  # a built-in one has none
                known(f"{section}.", "source", set(kinds(schema)))
            objects[section], resolved = typed(section, schema, plain)
        else:
            objects[section], resolved = typed(section, PLAIN[section], plain)
        values[section] = head | extra | resolved
    for key, _ in flatten(values):
        origin.setdefault(key, "default")
    order = ["seed", *SECTIONS, *PLAIN, "published"]
    config = Config({k: values[k] for k in order if k in values}, origin, **objects, kept=kept)
    _check_pair(config)
    return config


def _merge(layers: Sequence[Layer]) -> tuple[dict[str, Any], dict[str, str]]:
    """All layers' values, and which layer each came from."""
    values: dict[str, Any] = {"seed": 0}
    origin = {"seed": "default"}
    for source, layer in layers:
        for key, value in layer.items():
            if key in SECTIONS or key in PLAIN:
                values.setdefault(key, {}).update(value)
                origin |= {f"{key}.{k}": source for k in dict(flatten(value))}
            elif key in ("seed", "published"):
                values[key] = value
                origin[key] = source
            else:
                raise unknown(key, _classes(layers))
    values["seed"] = settled("seed", int, values["seed"])
    return values, origin


def _classes(layers: Sequence[Layer]) -> dict[str, type[Any]]:
    """What each section's keys belong to."""
    names = DEFAULT_NAMES | {s: str(_named(v, s)) for _, v in layers for s in SECTIONS if _named(v, s)}
    return {**{section: find(section, names[section])[0] for section in SECTIONS}, **PLAIN}


def _check_pair(config: Config) -> None:
    """A method and a solver that do not fit are refused here, with the solvers that do."""
    why = config.method.mismatch(config.local)
    if why:
        kinds = {name: registry.find("local", name) for name in registry.builtin("local")}
        fits = [name for name, kind in kinds.items() if not config.method.mismatch(kind())]
        raise ValueError(
            f"local={config.title('local')}: does not fit method={config.title('method')}, which {why}; "
            f"{'choose local=' + ' or '.join(fits) if fits else 'no built-in solver fits either'}"
        )


def _named(values: Mapping[str, Any], section: str) -> str | None:
    name = (values.get(section) or {}).get("name")
    return None if name is None else str(name)


def _is_file(name: str) -> bool:
    """A file of the user's rather than a built-in experiment."""
    return name.endswith((".yaml", ".yml"))


def _experiment_file(name: str) -> Path:
    if _is_file(name):
        if not Path(name).is_file():
            raise ValueError(f"{name}: no such file")
        return Path(name)
    path = folder("experiment") / f"{name}.yaml"
    if not path.is_file():
        raise ValueError(f"experiment {name}: unknown; {hint(name, experiments())} (or name a .yaml file)")
    return path
