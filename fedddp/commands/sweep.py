"""run a grid of settings: seed=0..2 local.lr=0.1,0.5, on this machine or as Slurm job arrays"""

import argparse
from pathlib import Path

from fedddp.commands import experiment
from fedddp.jobs.options import launching


def add(parser: argparse.ArgumentParser) -> None:
    experiment(parser)
    parser.add_argument("--points", type=Path, metavar="FILE", help="a YAML list of points, each a mapping of settings")
    launching(parser, "local")


def call(arguments: argparse.Namespace) -> int:
    from fedddp.config.loading import split_words
    from fedddp.jobs import grid, sweep
    from fedddp.jobs.options import Options

    name, words = split_words(arguments.words)
    return sweep.launch(Options.of(arguments), name, grid.points(words, arguments.points))
