"""print the resolved config and where each value came from"""

import argparse
import json
from typing import TYPE_CHECKING

from fedddp.commands import experiment

if TYPE_CHECKING:
    from fedddp.runs.config import Config


def add(parser: argparse.ArgumentParser) -> None:
    experiment(parser)


def call(arguments: argparse.Namespace) -> int:
    from fedddp.runs import config as configuration
    from fedddp.runs.schema import flatten

    config = configuration.load(*configuration.split_words(arguments.words))
    values = flatten(config.values)
    rows = [(f"{key}: {json.dumps(value)}", config.origin.get(key, "")) for key, value in values]
    width = max(len(left) for left, _ in rows)
    for left, source in rows:
        print(f"{left:<{width}}  # {source}")
    print(f"config_hash: {config.hash}")
    print(f"memory of a GPU: {_memory(config)}")
    return 0


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
