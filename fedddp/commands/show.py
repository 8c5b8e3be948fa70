"""print the resolved config and where each value came from"""

import argparse
import json

from fedddp.commands import experiment


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
    return 0
