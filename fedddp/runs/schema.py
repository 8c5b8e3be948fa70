"""The schema of a configuration: dataclasses whose fields are the keys, and what of them can change a result.

The sections data, split, model, method and local are the classes that are named there; the others stand below.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from fedddp.core.check import check, hint
from fedddp.core.plugins import title
from fedddp.core.registry import SECTIONS
from fedddp.core.rng import STREAMS
from fedddp.rounds.compression import ExchangeSettings
from fedddp.rounds.store import PLACES

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
class FederationSettings:
    rounds: int = 20
    participation: float = 1.0  # share of the clients that take part in a round
    cohort_width: int | str = 0  # most clients computed together; 0: a rule of the model's kind and size; or auto
    measured_width: int = 0  # what auto found; written by the run
    vectorise: bool = True  # compute a cohort's clients by vmap rather than one by one
    seed: int | None = None  # of the sampling of clients and of their batches and noise (default: seed)
    streams: str = "independent"  # or common, frozen: see fedddp/core/rng.py
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
class EvaluationSettings:
    every: int = 1  # rounds between two evaluations; the last round is always evaluated
    samples: int = 32  # posterior samples to average, for methods that have a posterior; 0: none
    ood: str = ""  # a data set to tell from the test set by predictive entropy
    histograms: int = 10  # rounds between two histograms in TensorBoard; 0: none, and no pictures

    def __post_init__(self) -> None:
        check("evaluation.every", self.every, self.every >= 1, "at least 1")
        check("evaluation.samples", self.samples, self.samples >= 0, "at least 0")
        check("evaluation.histograms", self.histograms, self.histograms >= 0, "at least 0")


@dataclass
class CheckpointSettings:
    every: int = 0  # rounds between two checkpoints; 0: as often as costs at most `share` of the time
    share: float = 0.05
    keep_clients: bool = False  # keep the clients' memory when the run is done

    def __post_init__(self) -> None:
        check("checkpoint.every", self.every, self.every >= 0, "at least 0")
        check("checkpoint.share", self.share, 0 < self.share <= 1, "in (0, 1]")


PLAIN: dict[str, type[Any]] = {
    "federation": FederationSettings,
    "exchange": ExchangeSettings,
    "evaluation": EvaluationSettings,
    "checkpoint": CheckpointSettings,
}
EXTRA: dict[str, dict[str, Any]] = {  # keys beside the class's own
    "split": {"seed": None},
    "model": {"seed": None, "loss": "auto"},
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
    kept = {key: value for key, value in flatten(values) if not key.startswith(NO_EFFECT)}
    return {key: title(str(value)) if key in names else value for key, value in kept.items()}


def known(prefix: str, key: object, names: list[str] | set[str]) -> None:
    if key not in names:
        raise ValueError(f"{prefix}{key}: unknown key; {hint(key, names, prefix)}")


def typed(section: str, schema: type[Any], given: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The section's object and its plain values; one clear line for an unknown key or a wrong type."""
    names = [f.name for f in fields(schema)]
    for key in given:
        known(f"{section}.", key, names)
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
