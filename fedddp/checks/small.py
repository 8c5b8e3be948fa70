"""The small federation that checks run on: seven unequal clients with a part of the digits, and quick settings."""

from collections.abc import Sequence
from dataclasses import fields, is_dataclass

from fedddp.config import loading as configuration
from fedddp.config.loading import Config

SMALL = [
    "data.name=digits",
    "data.test_fraction=0.85",
    "split.clients=7",
    "split.minimum=4",
    "federation.rounds=3",
    "federation.check_every=1",
    "evaluation.every=3",
    "evaluation.samples=2",
    "evaluation.histograms=0",  # nor pictures, which take longer than the run
    "federation.cohort_width=3",  # several clients a cohort, so that bits would show a rank-dependent grouping
    "local.batch_size=8",
    "local.epochs=1",
]
MODELS = {
    "mlp": ["model.name=mlp", "model.hidden=[12]"],
    "conv": ["model.name=cnn", "model.channels=[4,8]", "model.groups=2"],
}
SETTINGS: dict[str, list[str]] = {  # what a method needs beyond its defaults to be quick on this data
    "dense": ["method.epochs=2", "method.generator_steps=2", "method.batch_size=16", "method.width=4"],
    "fedbens": ["method.structure=last", "method.members=2", "method.steps=4"],  # kron has no factors for GroupNorm
    "fedlap_func": ["method.steps=4"],
    "fedlap_func_cov": ["method.steps=4"],
    "fedfisher": ["method.fisher=diag", "method.steps=4"],
    # eigenvectors of 910 parameters take seconds and have their own test; plain Newton steps are too long for a network
    "fednl": ["method.compressor=top", "method.decay=0.1"],
}


def load(words: Sequence[str], *more: str) -> Config:
    """`words` in the small federation, with the settings `more`; where two set the same thing, `words` win.

    Of our own settings only those are given that there are: another's solver need not know of epochs.
    """
    named = {word.partition("=")[0].partition(".")[0] for word in words if _names(word)}
    chosen = configuration.load(None, words)
    ours = [*SMALL, *SETTINGS.get(chosen["method.name"], []), *more]
    return configuration.load(None, [*(word for word in ours if _applies(word, named, chosen)), *words])


def _names(word: str) -> bool:
    """method=..., or method.name=..."""
    key = word.partition("=")[0]
    return "." not in key or key.endswith(".name")


def _applies(word: str, named: set[str], chosen: Config) -> bool:
    section, _, key = word.partition("=")[0].partition(".")
    if section not in ("data", "split", "model", "method", "local"):
        return True
    if section in ("data", "model") and section not in named:  # then they are ours
        return True
    if section == "model":  # another model's `hidden` may mean another thing
        return False
    made = getattr(chosen, section)
    return key != "name" and is_dataclass(made) and key in {field.name for field in fields(made)}
