"""run an experiment on this machine, or as one rank of torchrun or srun"""

import argparse
import os
from functools import partial
from pathlib import Path

from fedddp.commands import experiment


def add(parser: argparse.ArgumentParser) -> None:
    experiment(parser)
    parser.add_argument("--ranks", type=int, help="processes on this machine (default: one per GPU or core)")
    parser.add_argument(
        "--out", type=Path, help="the run's folder (default: runs/EXPERIMENT/METHOD-SETTINGS-seedN-HASH)"
    )
    parser.add_argument("--resume", action="store_true", help="go on with what the folder holds")


def call(arguments: argparse.Namespace) -> int:
    from fedddp.config import loading as configuration
    from fedddp.jobs import here
    from fedddp.runs.claim import default_folder, home
    from fedddp.runs.rank import work

    name, overrides = configuration.split_words(arguments.words)
    config = configuration.load(name, overrides)
    if arguments.ranks is not None and arguments.ranks < 1:
        raise ValueError(f"--ranks {arguments.ranks}: must be at least 1")
    out = arguments.out or default_folder(Path("runs") / home(name, config), config, arguments.resume)
    ranks = 1 if "RANK" in os.environ else arguments.ranks or here.default_ranks(config)
    rank = partial(work, config, out, arguments.resume)
    return rank() if ranks == 1 else here.start(rank, ranks, config.federation.threads, arguments.debug)
