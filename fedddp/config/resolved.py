"""A configuration that is resolved: layers of values become plain ones with their origin, and the objects they mean."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

from fedddp.config import asked
from fedddp.config.own import Kept, find, record
from fedddp.config.schema import (
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
from fedddp.core import registry
from fedddp.core.data import Source
from fedddp.core.model import Model
from fedddp.core.plugins import title
from fedddp.core.registry import SECTIONS
from fedddp.core.settings import kinds, settled
from fedddp.core.shards import Split
from fedddp.rounds.compression import ExchangeSettings
from fedddp.rounds.method import Method
from fedddp.rounds.privacy import PrivacySettings
from fedddp.rounds.solver import Solver

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


def resolve(layers: Sequence[Layer], given: Mapping[str, Any], folder: Path | None) -> Config:
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
                values[key] = _over(values.get(key, {}), value)
                origin |= {f"{key}.{k}": source for k in dict(flatten(value))}
            elif key in ("seed", "published"):
                values[key] = value
                origin[key] = source
            else:
                raise unknown(key, _classes(layers))
    values["seed"] = settled("seed", int, values["seed"])
    return values, origin


def _over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    """Both layers' values, key by key: model.lora.train=B keeps the experiment's model.lora.rank."""
    found = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
        found[key] = _over(found[key], value) if both else value
    return found


def _classes(layers: Sequence[Layer]) -> dict[str, type[Any]]:
    """What each section's keys belong to."""
    names = DEFAULT_NAMES | {s: str(named(v, s)) for _, v in layers for s in SECTIONS if named(v, s)}
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


def named(values: Mapping[str, Any], section: str) -> str | None:
    name = (values.get(section) or {}).get("name")
    return None if name is None else str(name)
