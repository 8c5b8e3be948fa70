"""Configuration: dataclasses are the schema, YAML files and `key=value` the values, left to right.

    the classes' defaults < configs/method/NAME.yaml < the experiment < its `methods: NAME:` block < key=value

Each section with a `name` (data, split, model, method, local) is the class of that name. A method other than the
experiment's own brings its usual solver, and takes over only epochs and batch_size from the experiment's `local`: a
learning rate belongs to a solver. Likewise for a section that is given another name.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from hashlib import blake2b
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedddp.core import registry
from fedddp.core.check import hint
from fedddp.core.data import Source
from fedddp.core.model import Model
from fedddp.core.plugins import title
from fedddp.core.registry import SECTIONS
from fedddp.core.shards import Split
from fedddp.rounds.compression import ExchangeSettings
from fedddp.rounds.method import Method
from fedddp.rounds.solver import PosteriorSolver, SamplingSolver, Solver
from fedddp.runs.own import Kept, find, record
from fedddp.runs.schema import (
    EXTRA,
    PLAIN,
    CheckpointSettings,
    EvaluationSettings,
    FederationSettings,
    flatten,
    known,
    relevant,
    typed,
)

SHARED = {  # what another solver, split, ... takes over from the one that an earlier layer names
    "local": ("epochs", "batch_size"),
    "split": ("clients", "minimum", "seed"),
    "data": ("root",),
    "model": ("seed", "loss"),
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
        """A run's folder is named by its configuration."""
        return f"{self.title('method')}-{self.hash}"


def load(
    experiment: str | None = None,
    overrides: Sequence[str] = (),
    more: Mapping[str, Any] | None = None,
    given: Mapping[str, Any] | None = None,
) -> Config:
    """The configuration of an experiment (a built-in name or a file; "" for none) with changes.

    Changes are `key=value` words, or values by section (`more`), or the sections' objects themselves (`given`).
    """
    name, given = "digits" if experiment is None else experiment, given or {}
    path = _experiment_file(name) if name else None
    file = _sections(read(path), str(path)) if path else {}
    command = _sections(_parse(overrides), "command line")
    python = _sections(dict(more or {}), "python")
    per_method = file.pop("methods", None) or {}
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
        (f"experiment {name}, methods.{method}", _sections(per_method.get(method) or {}, f"{name}: methods.{method}")),
        ("command line", command),
        ("python", python),
    ]
    _drop_replaced(layers)
    return _resolve(layers, given, path.parent if path else None)


def load_resolved(values: Mapping[str, Any], folder: Path | None = None) -> Config:
    """A configuration from the config.yaml of a run, in its folder."""
    plain = {k: v for k, v in values.items() if k != "published"}
    config = _resolve([("config.yaml", plain)], {}, folder)
    if "published" in values:
        config.values["published"] = values["published"]
    return config


def split_words(words: Sequence[str]) -> tuple[str | None, list[str]]:
    """The experiment, if one is named, and the settings."""
    names = [word for word in words if "=" not in word]
    if len(names) > 1:
        raise ValueError(f"{names[1]!r}: not understood; settings are written key=value")
    return (names[0] if names else None), [word for word in words if "=" in word]


def stem(experiment: str | None) -> str:
    """Of the folder with an experiment's runs."""
    return Path(experiment or "digits").stem


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
    own = {f.name for f in fields(find(section, name)[0])} | set(EXTRA.get(section, {}))
    shared = SHARED[section] if "name" in before else own
    return {k: v for k, v in before.items() if k in shared and k in own}


def _resolve(layers: Sequence[Layer], given: Mapping[str, Any], folder: Path | None) -> Config:
    values, origin = _merge(layers)
    objects: dict[str, Any] = {}
    kept = Kept()
    for section in (*SECTIONS, *PLAIN):
        own = dict(values.get(section) or {})
        name = str(own.pop("name", DEFAULT_NAMES.get(section, "")))
        beside = {key: own.pop(key, default) for key, default in EXTRA.get(section, {}).items()}
        head: dict[str, Any] = {}
        resolved: dict[str, Any] = {}
        if section in given:
            objects[section] = given[section]
            head = record(given[section])
        elif section in SECTIONS:
            schema, head = find(section, name, own.pop("source", ""), folder, kept)
            objects[section], resolved = typed(section, schema, own)
        else:
            objects[section], resolved = typed(section, PLAIN[section], own)
        values[section] = head | beside | resolved
    for key, _ in flatten(values):
        origin.setdefault(key, "default")
    order = ["seed", *SECTIONS, *PLAIN, "published"]
    config = Config({k: values[k] for k in order if k in values}, origin, **objects, kept=kept)
    _check_pair(config)
    return config


def _merge(layers: Sequence[Layer]) -> tuple[dict[str, Any], dict[str, str]]:
    """All layers' values, and which layer each came from."""
    sections = {*SECTIONS, *PLAIN, "seed", "published"}
    values: dict[str, Any] = {"seed": 0}
    origin = {"seed": "default"}
    for source, layer in layers:
        for key, value in layer.items():
            known("", key, sections)
            if isinstance(value, Mapping) and key != "published":
                values.setdefault(key, {}).update(value)
                origin |= {f"{key}.{k}": source for k in dict(flatten(value))}
            else:
                values[key] = value
                origin[key] = source
    if isinstance(values["seed"], bool) or not isinstance(values["seed"], int):
        raise ValueError(f"seed={values['seed']}: must be an integer")
    return values, origin


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


def _parse(overrides: Sequence[str]) -> dict[str, Any]:
    """key=value words; `method=NAME` stands for `method.name=NAME`, likewise the other named sections."""
    words = []
    for word in overrides:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise ValueError(f"{word!r}: not understood; settings are written key=value, as in federation.rounds=50")
        words.append(f"{key}.name={value}" if key in SECTIONS else word)
    try:
        parsed = OmegaConf.to_container(OmegaConf.from_dotlist(words), resolve=True)
    except OmegaConfBaseException as error:
        raise ValueError(f"{' '.join(overrides)}: {str(error).splitlines()[0]}") from error
    assert isinstance(parsed, dict)
    return {str(k): v for k, v in parsed.items()}


def _sections(layer: dict[str, Any], where: str) -> dict[str, Any]:
    """Sections are mappings; a name alone stands for the section of that name."""
    for section, value in layer.items():
        if section in SECTIONS and isinstance(value, str):
            layer[section] = {"name": value}
        elif section in SECTIONS or section in PLAIN:
            if value is None:
                layer[section] = {}
            elif not isinstance(value, Mapping):
                raise ValueError(f"{section}={value}: is a section ({where}); write {section}.<key>=<value>")
    return layer


def _named(values: Mapping[str, Any], section: str) -> str | None:
    name = (values.get(section) or {}).get("name")
    return None if name is None else str(name)


def _experiment_file(name: str) -> Path:
    if name.endswith((".yaml", ".yml")):
        if not Path(name).is_file():
            raise ValueError(f"{name}: no such file")
        return Path(name)
    path = folder("experiment") / f"{name}.yaml"
    if not path.is_file():
        raise ValueError(f"experiment {name}: unknown; {hint(name, experiments())} (or name a .yaml file)")
    return path


def read(path: Path) -> dict[str, Any]:
    """A YAML file of sections."""
    try:
        found = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except Exception as error:  # the YAML library's own error types are not public
        raise ValueError(f"{path}: not a readable YAML file: {str(error).splitlines()[0]}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path}: must hold sections such as data:, model:, method:")
    return {str(k): v for k, v in found.items()}
