"""Configuration: dataclasses are the schema, YAML files and `key=value` the values, left to right.

    the dataclasses' defaults < configs/method/NAME.yaml < the experiment < its `methods: NAME:` block < key=value

Each section with a `name` (data, split, model, method, local) is the dataclass of the file of that name. A method
other than the experiment's own brings its usual solver, and takes over only epochs and batch_size from the
experiment's `local`: a learning rate belongs to a solver. Likewise for a section that is given another name.
"""

import difflib
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from hashlib import blake2b
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from torch import nn

from fedddp.compress import Settings as Compression
from fedddp.local import check
from fedddp.registry import SECTIONS, find
from fedddp.rng import STREAMS
from fedddp.store import PLACES

SHARED = {  # what another solver, split, ... takes over from the one that an earlier layer names
    "local": ("epochs", "batch_size"),
    "split": ("clients", "minimum", "seed"),
    "data": ("root",),
    "model": ("seed", "loss"),
    "method": (),
}
DTYPES = {"float32": torch.float32, "float64": torch.float64}
NO_EFFECT = (
    "data.root",
    "federation.timeout",
    "federation.rows",
    "federation.fits",
    "federation.graphs",
    "federation.measured_width",
    "checkpoint.",
    "published",
    "evaluation.histograms",
)


@dataclass
class Federation:
    rounds: int = 20
    participation: float = 1.0  # share of the clients that take part in a round
    cohort_width: int | str = 0  # most clients computed together; 0: a rule of the model's kind and size; or auto
    measured_width: int = 0  # what auto found; written by the run
    vectorise: bool = True  # compute a cohort's clients by vmap rather than one by one
    seed: int | None = None  # of the sampling of clients and of their batches and noise (default: seed)
    streams: str = "independent"  # or common, frozen: see fedddp/rng.py
    dtype: str = "float32"
    autocast: str = "none"  # or bf16: the products of local gradients in bfloat16; changes results
    graphs: bool = False  # replay local gradients as CUDA graphs, where their shapes are static
    deterministic: bool = True  # on a GPU: only kernels whose bits are the same every time
    threads: int = 1  # per rank; other numbers may change bits
    on_bad_client: str = "stop"  # or skip: leave a failing client out and go on
    check_every: int = 10  # rounds between two checks that all ranks hold the same server state
    timeout: float = 600.0  # seconds to wait for another rank
    rows: str = "device"  # where client memory is kept and sums wait: device, host or file (in TMPDIR); same bits
    fits: str = ""  # a folder for the clients' first fits, which one-shot methods can then share; same bits

    def __post_init__(self) -> None:
        name = "federation"
        check(f"{name}.rounds", self.rounds, self.rounds >= 0, "at least 0")
        check(f"{name}.participation", self.participation, 0 < self.participation <= 1, "in (0, 1]")
        width = self.cohort_width
        fine = width == "auto" if isinstance(width, str) else width >= 0
        check(f"{name}.cohort_width", width, fine, "a number, 0 for the rule, or auto")
        check(f"{name}.streams", self.streams, self.streams in STREAMS, " or ".join(STREAMS))
        check(f"{name}.dtype", self.dtype, self.dtype in DTYPES, " or ".join(DTYPES))
        check(f"{name}.autocast", self.autocast, self.autocast in ("none", "bf16"), "none or bf16")
        half = self.autocast != "none"
        check(f"{name}.dtype", self.dtype, not half or self.dtype == "float32", "float32 with federation.autocast=bf16")
        check(f"{name}.threads", self.threads, self.threads >= 1, "at least 1")
        check(
            f"{name}.on_bad_client",
            self.on_bad_client,
            self.on_bad_client in ("stop", "skip"),
            "stop or skip",
        )
        check(f"{name}.check_every", self.check_every, self.check_every >= 1, "at least 1")
        check(f"{name}.timeout", self.timeout, self.timeout > 0, "above 0")
        check(f"{name}.rows", self.rows, self.rows in PLACES, " or ".join(PLACES))


@dataclass
class Evaluation:
    every: int = 1  # rounds between two evaluations; the last round is always evaluated
    samples: int = 32  # posterior samples to average, for methods that have a posterior; 0: none
    ood: str = ""  # a data set to tell from the test set by predictive entropy
    histograms: int = 10  # rounds between two histograms in TensorBoard; 0: none, and no pictures

    def __post_init__(self) -> None:
        check("evaluation.every", self.every, self.every >= 1, "at least 1")
        check("evaluation.samples", self.samples, self.samples >= 0, "at least 0")
        check("evaluation.histograms", self.histograms, self.histograms >= 0, "at least 0")


@dataclass
class Checkpoint:
    every: int = 0  # rounds between two checkpoints; 0: as often as costs at most `share` of the time
    share: float = 0.05
    keep_clients: bool = False  # keep the clients' memory when the run is done

    def __post_init__(self) -> None:
        check("checkpoint.every", self.every, self.every >= 0, "at least 0")
        check("checkpoint.share", self.share, 0 < self.share <= 1, "in (0, 1]")


@dataclass
class Custom:
    """A module of the user's, by import path."""

    args: dict[str, Any] = field(default_factory=dict)


PLAIN: dict[str, type[Any]] = {
    "federation": Federation,
    "exchange": Compression,
    "evaluation": Evaluation,
    "checkpoint": Checkpoint,
}
DEFAULT_NAMES = {"data": "digits", "split": "dirichlet", "model": "mlp", "method": "fedavg"}
EXTRA: dict[str, dict[str, Any]] = {
    "split": {"seed": None},
    "model": {"seed": None, "loss": "auto"},
}  # keys beside the dataclass's own


@dataclass
class Config:
    """A resolved configuration: plain values, where each came from, and the objects they stand for."""

    values: dict[str, Any]
    origin: dict[str, str]
    data: Any
    split: Any
    model: Any
    method: Any
    local: Any
    federation: Federation
    exchange: Compression
    evaluation: Evaluation
    checkpoint: Checkpoint

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

    @property
    def relevant(self) -> dict[str, Any]:
        """Everything that can change a result, by dotted key."""
        return {k: v for k, v in flatten(self.values) if not k.startswith(NO_EFFECT)}

    @property
    def hash(self) -> str:
        return blake2b(json.dumps(self.relevant, sort_keys=True).encode(), digest_size=6).hexdigest()

    def build_module(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        if not isinstance(self.model, Custom):
            module: nn.Module = self.model.build(shape, outputs)
            return module
        name = self.values["model"]["name"]
        try:
            module = _import_path(name)(**self.model.args)
        except TypeError as error:
            raise ValueError(
                f"model.name={name}: cannot be built with model.args={self.model.args}: {error}"
            ) from error
        check("model.name", name, isinstance(module, nn.Module), "a torch.nn.Module")
        return module


def load(experiment: str | None, overrides: Sequence[str] = ()) -> Config:
    """The configuration of an experiment (a built-in name or a file) with `key=value` changes."""
    name = experiment or "digits"
    file = _read(_experiment_file(name))
    command = _parse(overrides)
    per_method = file.pop("methods", {}) or {}
    method = _named(command, "method") or _named(file, "method") or DEFAULT_NAMES["method"]
    usual = _read(folder("method") / f"{method}.yaml") if (folder("method") / f"{method}.yaml").exists() else {}
    block = per_method.get(method, {})
    if method != (_named(file, "method") or DEFAULT_NAMES["method"]):
        file.pop("method", None)
        file["local"] = _carried("local", file.get("local") or {}, _named(usual, "local") or "sgd")
    layers = [
        (f"configs/method/{method}.yaml", usual),
        (f"experiment {name}", file),
        (f"experiment {name}, methods.{method}", block),
        ("command line", command),
    ]
    _drop_replaced(layers)
    return _resolve(layers, method)


def load_resolved(values: Mapping[str, Any]) -> Config:
    """A configuration from the config.yaml of a run."""
    plain = {k: v for k, v in values.items() if k != "published"}
    config = _resolve([("config.yaml", plain)], str(values["method"]["name"]))
    if "published" in values:
        config.values["published"] = values["published"]
    return config


def folder(kind: str) -> Path:
    """Where the built-in YAML files of a kind lie: in the installed package, or at the top of the source tree."""
    inside = Path(__file__).parent / "configs" / kind
    return inside if inside.is_dir() else Path(__file__).parent.parent / "configs" / kind


def experiments() -> list[str]:
    return sorted(path.stem for path in folder("experiment").glob("*.yaml"))


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of nested mappings."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _drop_replaced(layers: list[tuple[str, dict[str, Any]]]) -> None:
    """Where a later layer names another solver, model, ..., earlier layers keep only what both share."""
    for section in SECTIONS:
        for later in range(len(layers) - 1, 0, -1):
            name = _named(layers[later][1], section)
            for _, values in layers[:later] if name else ():
                given = values.get(section) or {}
                if given.get("name", name) != name:
                    values[section] = _carried(section, given, str(name))


def _carried(section: str, given: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The settings that make sense for another name too."""
    if ":" in name:
        return {}
    known = {f.name for f in fields(find(section, name))} | set(EXTRA.get(section, {}))
    return {k: v for k, v in given.items() if k in SHARED[section] and k in known}


def _resolve(layers: Sequence[tuple[str, Mapping[str, Any]]], method: str) -> Config:
    known = {*SECTIONS, *PLAIN, "seed", "published"}
    values: dict[str, Any] = {"seed": 0}
    origin = {"seed": "default"}
    for source, layer in layers:
        for key, value in layer.items():
            _known("", key, known)
            if isinstance(value, Mapping) and key != "published":
                values.setdefault(key, {}).update(value)
                origin |= {f"{key}.{k}": source for k in dict(flatten(value))}
            else:
                values[key] = value
                origin[key] = source
    if isinstance(values["seed"], bool) or not isinstance(values["seed"], int):
        raise ValueError(f"seed={values['seed']}: must be an integer")
    objects: dict[str, Any] = {}
    for section in (*SECTIONS, *PLAIN):
        given = dict(values.get(section) or {})
        name = given.pop("name", method if section == "method" else DEFAULT_NAMES.get(section, "sgd"))
        schema = PLAIN.get(section) or (Custom if section == "model" and ":" in str(name) else find(section, str(name)))
        extra = EXTRA.get(section, {})
        beside = {key: given.pop(key, default) for key, default in extra.items()}
        objects[section], resolved = typed(section, schema, given)
        values[section] = ({"name": name} if section in SECTIONS else {}) | beside | resolved
    for key, _ in flatten(values):
        origin.setdefault(key, "default")
    order = ["seed", *SECTIONS, *PLAIN, "published"]
    return Config({k: values[k] for k in order if k in values}, origin, **objects)


def typed(section: str, schema: type[Any], given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The section's object and its plain values; one clear line for an unknown key or a wrong type."""
    names = [f.name for f in fields(schema)]
    for key in given:
        _known(f"{section}.", key, names)
    merged = OmegaConf.structured(schema)
    try:
        merged.merge_with(dict(given))
    except OmegaConfBaseException as error:
        for key in (key for key, value in given.items() if not _fits(schema, key, value)):
            wanted = next(f.type for f in fields(schema) if f.name == key)
            wanted = getattr(wanted, "__name__", str(wanted))
            raise ValueError(f"{section}.{key}={given[key]}: must be of type {wanted}") from error
        raise
    plain = OmegaConf.to_container(merged, resolve=True)
    assert isinstance(plain, dict)
    return OmegaConf.to_object(merged), {str(k): v for k, v in plain.items()}


def _fits(schema: type[Any], key: str, value: object) -> bool:
    """Whether the value is of the key's type; a merge for each key is slow, so only asked when one for all failed."""
    try:
        OmegaConf.merge(OmegaConf.structured(schema), {key: value})
    except OmegaConfBaseException:
        return False
    return True


def _known(prefix: str, key: object, names: Sequence[str] | set[str]) -> None:
    if key not in names:
        close = difflib.get_close_matches(str(key), list(names), 1)
        hint = f"did you mean {prefix}{close[0]}?" if close else f"choose from {', '.join(sorted(names))}"
        raise ValueError(f"{prefix}{key}: unknown key; {hint}")


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
    for section, given in parsed.items():
        if section in PLAIN and not isinstance(given, dict):
            raise ValueError(f"{section}={given}: is a section; write {section}.<key>=<value>")
    return {str(k): v for k, v in parsed.items()}


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
        close = difflib.get_close_matches(name, experiments(), 1)
        hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(experiments())}"
        raise ValueError(f"experiment {name}: unknown; {hint} (or name a .yaml file)")
    return path


def _read(path: Path) -> dict[str, Any]:
    try:
        read = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    except Exception as error:  # the YAML library's own error types are not public
        raise ValueError(f"{path}: not a readable YAML file: {str(error).splitlines()[0]}") from error
    if not isinstance(read, dict):
        raise ValueError(f"{path}: must hold sections such as data:, model:, method:")
    return {str(k): v for k, v in read.items()}


@lru_cache
def _import_path(name: str) -> Any:
    """`package.module:Class` or `path/file.py:Class`."""
    where, _, attribute = name.partition(":")
    try:
        if where.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(where).stem, where)
            assert spec is not None
            assert spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = import_module(where)
        return getattr(module, attribute)
    except (ImportError, AttributeError, OSError) as error:
        raise ValueError(f"model.name={name}: cannot be imported: {error}") from error
