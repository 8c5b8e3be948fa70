"""run one experiment as a Slurm job"""

import argparse

from fedddp.commands import experiment
from fedddp.jobs.options import launching


def add(parser: argparse.ArgumentParser) -> None:
    experiment(parser)
    launching(parser, "slurm")


def call(arguments: argparse.Namespace) -> int:
    from fedddp.config.loading import split_words
    from fedddp.jobs import sweep
    from fedddp.jobs.options import Options

    name, words = split_words(arguments.words)
    return sweep.launch(Options.of(arguments), name, [words])
