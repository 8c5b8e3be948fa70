"""Which runs belong together: those that differ in nothing but seeds are one row, and only they are averaged."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedddp.core.registry import SECTIONS
from fedddp.reports.numbers import last_three, more_is_better
from fedddp.reports.runs import Record


@dataclass(frozen=True)
class Row:
    """Runs of one setting with different seeds, and the keys that tell the setting from the others."""

    label: dict[str, Any]
    runs: list[Record]

    @property
    def name(self) -> str:
        return _name(self.label)


def group(runs: Sequence[Record], by: Sequence[str]) -> list[Row]:
    """One row per setting, labelled by the keys `by` and by as few others as tell all rows apart."""
    rows: dict[str, list[Record]] = {}
    for run in _once(runs):
        rows.setdefault(_text(_setting(run)), []).append(run)
    labels = _labels([json.loads(setting) for setting in rows], full_keys(runs, by))
    return [Row(label, members) for label, members in zip(labels, rows.values(), strict=True)]


def regrouped(rows: Sequence[Row]) -> list[Row]:
    """Some of the rows, labelled by as few keys as tell these apart."""
    settings = [_setting(row.runs[0]) for row in rows]
    first = list(rows[0].label)[:1]  # what was asked for stands first in every label
    labels = [_needed(label, settings) for label in _labels(settings, first)]
    return [Row(label, row.runs) for label, row in zip(labels, rows, strict=True)]


def _needed(label: dict[str, Any], settings: list[dict[str, Any]]) -> dict[str, Any]:
    """A label without a method's own settings that tell nothing apart among the rows of that method.

    Two methods may have a setting of one name with two meanings.
    """
    name = label.get("method.name")
    rivals = [setting for setting in settings if setting.get("method.name") == name]
    idle = {key for key in label if key.startswith("method.") and len({_text(one.get(key)) for one in rivals}) == 1}
    return {key: None if name and key in idle - {"method.name"} else value for key, value in label.items()}


def best(runs: Sequence[Record], over: Sequence[str], metric: str) -> tuple[list[Record], list[str]]:
    """Of runs that differ only in the keys `over`, those of the best setting; and a line on each choice.

    The choice is made on the held-out part of the training data (validation_METRIC), never on the test set.
    """
    keys = full_keys(runs, over)
    rivals: dict[str, dict[str, list[Record]]] = {}
    for run in _once(runs):
        setting = _setting(run)
        choice = {key: setting.pop(key, None) for key in keys}
        rivals.setdefault(_text(setting), {}).setdefault(_text(choice), []).append(run)
    kept, notes = [], []
    labels = _labels([json.loads(setting) for setting in rivals], ["method.name"])
    for label, choices in zip(labels, rivals.values(), strict=True):
        members, note = _winner(choices, f"validation_{metric}")
        kept += members
        notes += [f"{_name(label)}: {note}"] if note else []
    return kept, notes


def full_keys(runs: Sequence[Record], keys: Sequence[str]) -> list[str]:
    """`method` stands for method.name, likewise the other sections; a key that no run has is an error."""
    full = [f"{key}.name" if key in SECTIONS else key for key in keys]
    known = sorted({key for run in runs for key in run.config})
    for key in full:
        if key not in known:
            raise ValueError(f"{key}: no run has this key; choose from {', '.join(known)}")
    return full


def is_seed(key: str) -> bool:
    return key.split(".")[-1].endswith("seed")


def _winner(choices: dict[str, list[Record]], metric: str) -> tuple[list[Record], str]:
    if len(choices) == 1:
        return next(iter(choices.values())), ""
    scores = {choice: float(np.mean([last_three(run, metric) for run in runs])) for choice, runs in choices.items()}
    for choice, score in scores.items():
        if not np.isfinite(score):
            raise ValueError(
                f"{choices[choice][0].folder}: has no {metric}, and the test set must not choose; run with "
                "data.validation=N to hold out N training examples"
            )
    ranked = sorted(scores, key=lambda choice: -scores[choice] if more_is_better(metric) else scores[choice])
    others = ", ".join(f"{_words(choice)} ({scores[choice]:.4f})" for choice in ranked[1:4])
    more = f" and {len(ranked) - 4} more" if len(ranked) > 4 else ""
    note = f"{_words(ranked[0])} chosen by {metric} {scores[ranked[0]]:.4f}, before {others}{more}"
    return choices[ranked[0]], note


def _once(runs: Sequence[Record]) -> list[Record]:
    """A configuration that was run twice gave the same numbers twice: count it once."""
    seen: dict[str, Record] = {}
    for run in runs:
        seen.setdefault(_text(run.config), run)
    return list(seen.values())


def _setting(run: Record) -> dict[str, Any]:
    return {key: value for key, value in run.config.items() if not is_seed(key)}


def _labels(settings: list[dict[str, Any]], keys: list[str]) -> list[dict[str, Any]]:
    """Greedy: names first, a further key only if it tells apart settings that the keys so far do not."""
    candidates = {key: None for setting in settings for key in setting}
    for key in sorted(candidates, key=lambda key: not key.endswith(".name")):
        if _distinct(settings, keys) == len(settings):
            break
        if _distinct(settings, [*keys, key]) > _distinct(settings, keys):
            keys = [*keys, key]
    return [{key: setting.get(key) for key in keys} for setting in settings]


def _distinct(settings: list[dict[str, Any]], keys: list[str]) -> int:
    return len({_text([setting.get(key) for key in keys]) for setting in settings})


def _name(label: dict[str, Any]) -> str:
    """In one line: the value of what has a name, key=value for the rest."""
    given = {key: value for key, value in label.items() if value is not None}
    named = [str(value) for key, value in given.items() if key.endswith(".name")]
    return " ".join([*named, *(f"{k.split('.')[-1]}={_text(v)}" for k, v in given.items() if not k.endswith(".name"))])


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _words(choice: str) -> str:
    return " ".join(f"{key}={value}" for key, value in json.loads(choice).items() if value is not None)
