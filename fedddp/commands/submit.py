"""run one experiment as a Slurm job"""

import argparse

from fedddp.commands import experiment, split_words
from fedddp.jobs.options import launching


def add(parser: argparse.ArgumentParser) -> None:
    experiment(parser)
    launching(parser, "slurm")


def call(arguments: argparse.Namespace) -> int:
    from fedddp.jobs import sweep

    name, words = split_words(arguments.words)
    return sweep.launch(arguments, name, [words])
