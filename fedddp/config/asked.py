"""What a run was asked for: the experiment and the settings named beside it, by which people tell its runs apart.

    asked:
      experiment: digits
      words: [method=feddyn, method.alpha=0.3, seed=1]

It stands in a run's config.yaml, wherever the run was started from, and is no part of the run's hash. The run's
folder, its name in TensorBoard and the command to repeat it are made of it.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from fedddp.config.schema import flatten
from fedddp.core.plugins import title
from fedddp.core.registry import SECTIONS

NAME = "asked"
LONGEST = 80  # characters of what a folder's name says before the hash


def asked(experiment: str, before: Any, words: Sequence[str], python: Mapping[str, Any]) -> dict[str, Any]:
    """As it is written: on top of what an earlier run was asked for, if `experiment` is that run's own config.yaml."""
    more = [*words, *(f"{key}={_word(value)}" for key, value in flatten(python))]
    if isinstance(before, Mapping) and isinstance(before.get("words"), list):
        experiment, more = str(before.get("experiment", "")), [*map(str, before["words"]), *more]
    return {"experiment": experiment, "words": more}


def chosen(values: Mapping[str, Any], relevant: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that were named and can change a result, by dotted key."""
    keys = (word.partition("=")[0] for word in (values.get(NAME) or {}).get("words", ()))
    full = (f"{key}.name" if key in SECTIONS else key for key in keys)
    return {key: relevant[key] for key in dict.fromkeys(full) if key in relevant}


def name(method: str, settings: Mapping[str, Any], seed: int) -> str:
    """METHOD-SETTINGS-seedN, fit for a folder: names alone, then keyVALUE, as many as there is room for."""
    said, ending = method, f"-seed{seed}"
    for key, value in sorted(settings.items(), key=lambda item: not item[0].endswith(".name")):
        part = f"-{_part(key, value)}"
        if key not in ("method.name", "seed") and len(said) + len(part) + len(ending) <= LONGEST:
            said += part
    return said + ending


def command(values: Mapping[str, Any]) -> str:
    """What repeats the run on the command line; objects handed over in Python are named only."""
    told = values.get(NAME) or {}
    return shlex.join(filter(None, ["fedddp", "run", str(told.get("experiment", "")), *told.get("words", ())]))


def _part(key: str, value: Any) -> str:
    text = title(str(value)) if key.endswith(".name") else f"{key.split('.')[-1]}{_word(value)}"
    return re.sub(r"[^\w.+]+", "_", text).strip("_")


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
