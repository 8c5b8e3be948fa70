"""print the resolved config and where each value came from"""

import argparse
import json
from typing import TYPE_CHECKING

from fedddp.commands import experiment

if TYPE_CHECKING:
    from fedddp.config.loading import Config


def add(parser: argparse.ArgumentParser) -> None:
    experiment(parser)
    parser.add_argument("--explain", action="store_true", help="say what each key means rather than where it is from")


def call(arguments: argparse.Namespace) -> int:
    from fedddp.config import loading as configuration
    from fedddp.config.asked import NAME
    from fedddp.config.schema import flatten

    config = configuration.load(*configuration.split_words(arguments.words))
    said = _meanings(config) if arguments.explain else config.origin
    shown = {key: value for key, value in config.values.items() if key != NAME}
    rows = [(f"{key}: {json.dumps(value)}", said.get(key, "")) for key, value in flatten(shown)]
    width = max(len(left) for left, _ in rows)
    for left, source in rows:
        print(f"{left:<{width}}  # {source}")
    print(f"config_hash: {config.hash}")
    print(f"memory of a GPU: {_memory(config)}")
    return 0


def _meanings(config: "Config") -> dict[str, str]:
    from fedddp.config.explain import meaning_of
    from fedddp.config.schema import flatten
    from fedddp.core.registry import SECTIONS

    names = {section: str(config.values[section]["name"]) for section in SECTIONS}
    return {key: meaning_of(key, names) for key, _ in flatten(config.values)}


def _memory(config: "Config") -> str:
    """How much of it the run takes at most, all clients on one rank; the data must be there to tell."""
    import torch

    from fedddp.runs.build import make_task
    from fedddp.runs.footprint import footprint

    try:
        task = make_task(config, torch.device("cpu"))
        return f"at most {footprint(config, task, 1, config['data.place']).line()}; fewer with more ranks"
    except (ValueError, OSError) as error:
        return f"not known: {error}"
