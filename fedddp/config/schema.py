"""The schema of a configuration: dataclasses whose fields are the keys, and what of them can change a result.

The sections data, split, model, method and local are the classes that are named there; the others stand below.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedddp.core import registry
from fedddp.core.check import check, check_count, closest, first_line, hint, shown
from fedddp.core.meanings import meanings
from fedddp.core.objective import OBJECTIVES
from fedddp.core.plugins import is_path, title
from fedddp.core.registry import SECTIONS
from fedddp.core.rng import STREAMS
from fedddp.core.settings import kinds, settled
from fedddp.rounds.compression import ExchangeSettings
from fedddp.rounds.personal_layers import PersonalSettings
from fedddp.rounds.privacy import PrivacySettings
from fedddp.rounds.store import PLACES

YEAR = 366 * 24 * 3600.0  # seconds
LAST = 3  # rounds that a reported number is the mean of
DTYPES = {"float32": torch.float32, "float64": torch.float64}
CLIENTS = ("none", "server")
TRACKERS = ("wandb", "mlflow")
DATA_PLACES = ("device", "host", "auto")
BUFFERS = ("refuse", "freeze", "average", "local")
LATER: dict[str, object] = {"federation.without": [], "federation.parts": 1, "split.virtual": 1}  # and what is usual
NO_EFFECT = (
    "data.root",
    "data.place",
    "federation.timeout",
    "federation.rows",
    "federation.fits",
    "federation.graphs",
    "federation.measured_width",
    "checkpoint.",
    "published",
    "asked.",
    "evaluation.histograms",
    "evaluation.trackers",
    "evaluation.alone",
)


@dataclass
class FederationSettings:
    rounds: int = 20  # rounds to train, at least 0
    participation: float = 1.0  # share of the clients that take part in a round, in (0, 1]
    cohort_width: int | str = 0  # most clients computed together; 0: by the model's kind and size; or auto: measured
    measured_width: int = 0  # what cohort_width=auto found; written by the run
    vectorise: bool = True  # whether to compute a cohort's clients by vmap rather than one by one
    parts: int = 1  # of a client's examples, each fitted by itself; the client's work is their mean; at least 1
    without: list[int] = field(default_factory=list)  # numbers (from 0) of the split's clients that are not there
    seed: int | None = None  # seed of the choice of clients and of their batches and noise; null: seed
    streams: str = "independent"  # random numbers: independent, common or frozen (see fedddp/core/rng.py)
    dtype: str = "float32"  # type of parameters and sums: float32 or float64
    autocast: str = "none"  # none, or bf16: the products of local gradients in bfloat16; changes results
    tf32: bool = False  # on a GPU: all products of float32 with 10 bits of mantissa instead of 23; changes results
    graphs: bool = False  # on a GPU: record steps of clients and servers as CUDA graphs, and replay; same bits
    deterministic: bool = True  # on a GPU: only kernels whose bits are the same every time
    threads: int = 1  # threads of each rank, at least 1; other numbers may change bits
    on_bad_client: str = "stop"  # stop, or skip: leave a failing client out and go on
    check_every: int = 10  # rounds between two checks that all ranks hold the same server state, at least 1
    timeout: float = 600.0  # seconds to wait for another rank, at most a year
    rows: str = "device"  # where client memory is kept and sums wait: device, host or file (in TMPDIR); same bits
    fits: str = ""  # a folder for the clients' first fits, which one-shot methods can then share; same bits

    def __post_init__(self) -> None:
        name = "federation"
        check_count(f"{name}.rounds", self.rounds, least=0)
        check(f"{name}.participation", self.participation, 0 < self.participation <= 1, "in (0, 1]")
        check_count(f"{name}.parts", self.parts)
        width = self.cohort_width
        fine = width == "auto" if isinstance(width, str) else width >= 0
        check(f"{name}.cohort_width", width, fine, "a number, 0 for the rule, or auto")
        width = self.measured_width
        fine = width == 0 or (width > 0 and self.cohort_width == "auto")
        check(f"{name}.measured_width", width, fine, "0, or what a run with federation.cohort_width=auto wrote")
        check(f"{name}.streams", self.streams, self.streams in STREAMS, " or ".join(STREAMS))
        check(f"{name}.dtype", self.dtype, self.dtype in DTYPES, " or ".join(DTYPES))
        check(f"{name}.autocast", self.autocast, self.autocast in ("none", "bf16"), "none or bf16")
        half = self.autocast != "none"
        check(f"{name}.dtype", self.dtype, not half or self.dtype == "float32", "float32 with federation.autocast=bf16")
        fine = not self.tf32 or self.dtype == "float32"
        check(f"{name}.dtype", self.dtype, fine, "float32 with federation.tf32=true")
        check_count(f"{name}.threads", self.threads, most=4096)
        check(
            f"{name}.on_bad_client",
            self.on_bad_client,
            self.on_bad_client in ("stop", "skip"),
            "stop or skip",
        )
        check(f"{name}.check_every", self.check_every, self.check_every >= 1, "at least 1")
        check(f"{name}.timeout", self.timeout, 0 < self.timeout <= YEAR, "above 0, and at most a year")
        check(f"{name}.rows", self.rows, self.rows in PLACES, " or ".join(PLACES))

    @property
    def precision(self) -> str:
        """Of parameters and sums, and of the products between them."""
        less = {"bf16 products in local gradients": self.autocast == "bf16", "tf32 products on a GPU": self.tf32}
        return ", ".join([self.dtype, *(name for name, on in less.items() if on)])


@dataclass
class EvaluationSettings:
    every: int = 1  # rounds between two evaluations, at least 1; the last three rounds are always evaluated
    at: list[int] = field(default_factory=list)  # rounds n, from 1, at which n - 2, n - 1 and n are evaluated, too
    samples: int = 32  # posterior samples to average, up to 100,000, for methods that have a posterior; 0: none
    ood: str = ""  # data set to tell from the test set by predictive entropy; own: the data's strange inputs; or none
    clients: str = "none"  # none; or server: also judge the server's model on each client's own part of the test set
    personal: int = 0  # epochs of local work that make the server's model each client's own, to judge it too; 0: none
    personal_share: float = 1.0  # how far a client's posterior moves from the server's to its own fit, in (0, 1]
    calibration: float = 0.0  # share of each client's test part that calibrates the final model, in [0, 1); 0: none
    alone: str = ""  # folder of a run of method=local, to tell what share of the clients is worse off than alone
    histograms: int = 10  # rounds between two histograms in TensorBoard; 0: none, and no pictures
    trackers: list[str] = field(default_factory=list)  # also tell wandb, mlflow or package.module:Class the numbers

    def __post_init__(self) -> None:
        check("evaluation.every", self.every, self.every >= 1, "at least 1")
        for name in self.trackers:
            if ":" not in name:
                check(
                    "evaluation.trackers", name, name in TRACKERS, f"{' or '.join(TRACKERS)}, or package.module:Class"
                )
        check("evaluation.at", self.at, all(n >= 1 for n in self.at), "rounds, counted from 1")
        check_count("evaluation.samples", self.samples, least=0, most=100_000)
        if self.ood not in ("", "own") and not is_path(self.ood) and self.ood not in registry.names("data"):
            raise ValueError(f"evaluation.ood={shown(self.ood)}: unknown; {hint(self.ood, registry.names('data'))}")
        check("evaluation.clients", self.clients, self.clients in CLIENTS, " or ".join(CLIENTS))
        check("evaluation.calibration", self.calibration, 0 <= self.calibration < 1, "in [0, 1)")
        fine = self.personal >= 0 and (self.personal == 0 or self.clients != "none")
        check("evaluation.personal", self.personal, fine, "at least 0, and above 0 only with evaluation.clients=server")
        check("evaluation.personal_share", self.personal_share, 0 < self.personal_share <= 1, "in (0, 1]")
        check(
            "evaluation.alone", self.alone, not self.alone or self.clients != "none", "with evaluation.clients=server"
        )
        check("evaluation.histograms", self.histograms, self.histograms >= 0, "at least 0")

    def wanted(self, finished: int, rounds: int) -> bool:
        """Whether to evaluate after that round: a number "at n" is the mean of three rounds, as in the papers."""
        return finished % self.every == 0 or any(0 <= n - finished < LAST for n in (*self.at, rounds))


@dataclass
class CheckpointSettings:
    every: int = 0  # rounds between two checkpoints; 0: as often as costs at most `share` of the time
    share: float = 0.05  # most of the run's time that checkpoints may take with every=0, in (0, 1]
    keep_clients: bool = False  # whether to keep the clients' memory when the run is done, to make it longer

    def __post_init__(self) -> None:
        check("checkpoint.every", self.every, self.every >= 0, "at least 0")
        check("checkpoint.share", self.share, 0 < self.share <= 1, "in (0, 1]")


PLAIN: dict[str, type[Any]] = {
    "federation": FederationSettings,
    "exchange": ExchangeSettings,
    "privacy": PrivacySettings,
    "evaluation": EvaluationSettings,
    "checkpoint": CheckpointSettings,
}


@dataclass
class RunSettings:
    """The keys that stand in no section."""

    seed: int = 0  # of everything random, an integer of 64 bits; split, model and federation may have one of their own


@dataclass
class DataExtra:
    place: str = "auto"  # where a device finds the training examples: device, host or auto; same bits


@dataclass
class SplitExtra:
    seed: int | None = None  # seed of who gets which examples; null: seed
    virtual: int = 1  # clients that each one becomes, with a part of its examples each, at least 1
    unseen: int = 0  # clients of those dealt that never train, drawn at random, to judge the result on; at least 0


@dataclass
class ModelExtra:
    seed: int | None = None  # seed of the parameters to start from; null: seed
    loss: str = "auto"  # auto: as the data's targets are; or the name of a loss that fits them
    buffers: str = "refuse"  # running statistics (BatchNorm): refuse, freeze, average over clients, or local to each


BESIDE: dict[str, type[Any]] = {
    "data": DataExtra,
    "split": SplitExtra,
    "model": ModelExtra,
    "method": PersonalSettings,
}
EXTRA: dict[str, dict[str, Any]] = {  # keys beside the class's own, and their defaults
    section: {own.name: getattr(schema(), own.name) for own in fields(schema)} for section, schema in BESIDE.items()
}


def flatten(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of nested mappings."""
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def relevant(values: Mapping[str, Any]) -> dict[str, Any]:
    """Everything that can change a result, by dotted key; of a class from elsewhere its content, not its place."""
    names = {f"{section}.name" for section in SECTIONS}
    private = (values.get("privacy") or {}).get("level", "none") != "none"
    without = NO_EFFECT if private else (*NO_EFFECT, "privacy.")
    kept = {key: value for key, value in flatten(values) if not key.startswith(without)}
    for key, usual in LATER.items():  # a run has the name that it had before there was this key
        if kept.get(key, usual) == usual:
            kept.pop(key, None)
    return {key: title(str(value)) if key in names else value for key, value in kept.items()}


def known(prefix: str, key: object, names: list[str] | set[str]) -> None:
    if key not in names:
        raise ValueError(f"{prefix}{shown(key)}: unknown key; {hint(key, names, prefix)}")


def typed(section: str, schema: type[Any], given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The section's object and its plain values; one clear line for an unknown key or a wrong type."""
    declared = kinds(schema)
    for key in given:
        known(f"{section}.", key, set(declared))
    try:
        return _made(section, schema, declared, given)
    except ValueError as error:
        raise _with_meaning(error, section, schema) from error


def _with_meaning(error: ValueError, section: str, schema: type[Any]) -> ValueError:
    """An error about a key's value also says what the key is."""
    key = str(error).partition("=")[0].removeprefix(f"{section}.")
    text = meanings(schema).get(key)
    return ValueError(f"{error} ({section}.{key}: {text})") if text else error


def _made(
    section: str, schema: type[Any], declared: Mapping[str, Any], given: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    values = {key: settled(f"{section}.{key}", declared[key], value) for key, value in given.items()}
    try:
        merged = OmegaConf.structured(schema)
        merged.merge_with(values)
        made, plain = OmegaConf.to_object(merged), OmegaConf.to_container(merged)
    except OmegaConfBaseException as error:  # types of a user's own class
        for key in (key for key, value in values.items() if not _fits(schema, key, value)):
            wanted = getattr(declared[key], "__name__", str(declared[key]))
            raise ValueError(f"{section}.{key}={shown(values[key])}: must be of type {wanted}") from error
        raise ValueError(f"{section}.{error.full_key}: {first_line(error)}") from error
    assert isinstance(plain, dict)
    return made, {str(k): v for k, v in plain.items()}


def beside(section: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The values of the keys beside the class's own."""
    if section not in BESIDE:
        return {}
    types = kinds(BESIDE[section])
    found = {k: settled(f"{section}.{k}", types[k], given.get(k, default)) for k, default in EXTRA[section].items()}
    if "place" in found:
        check(f"{section}.place", found["place"], found["place"] in DATA_PLACES, " or ".join(DATA_PLACES))
    if "personal" in found:
        PersonalSettings(**found)
    if "virtual" in found:
        check_count(f"{section}.virtual", found["virtual"])
        fine = found["virtual"] == 1 or not found["unseen"]
        check(
            f"{section}.virtual",
            found["virtual"],
            fine,
            "1 with split.unseen, whose clients would have trained in part",
        )
    if "unseen" in found:
        check(f"{section}.unseen", found["unseen"], found["unseen"] >= 0, "at least 0")
    if "buffers" in found:
        check(f"{section}.buffers", found["buffers"], found["buffers"] in BUFFERS, " or ".join(BUFFERS))
    if "loss" in found:
        losses = ("auto", *OBJECTIVES)
        check(f"{section}.loss", found["loss"], found["loss"] in losses, " or ".join(losses))
    return found


def unknown(key: str, classes: Mapping[str, type[Any]]) -> ValueError:
    """For a key that is no section: it may be one of a section's keys."""
    sections = {"seed", *SECTIONS, *PLAIN}
    inside = [(s, name) for s, schema in classes.items() for name in (*kinds(schema), *EXTRA.get(s, {}))]
    for name in (key, closest(key, sections), closest(key, {name for _, name in inside})):
        found = [name] if name in sections else [f"{section}.{own}" for section, own in inside if own == name]
        if found:
            return ValueError(f"{shown(key)}: unknown key; did you mean {' or '.join(found)}?")
    return ValueError(f"{shown(key)}: unknown key; {hint(key, sections)}")


def _fits(schema: type[Any], key: str, value: object) -> bool:
    """Whether the value is of the key's type; a merge for each key is slow, so only asked when one for all failed."""
    try:
        OmegaConf.merge(OmegaConf.structured(schema), {key: value})
    except OmegaConfBaseException:
        return False
    return True
