"""show how an experiment's data is split over its clients: a table, and a picture"""

import argparse
from pathlib import Path

from fedddp.commands import experiment
from fedddp.core.progress import waiting


def add(parser: argparse.ArgumentParser) -> None:
    experiment(parser)
    parser.add_argument("--out", type=Path, help="the picture's file (default: runs/EXPERIMENT/split.png)")


def call(arguments: argparse.Namespace) -> int:
    from fedddp.config import loading as configuration
    from fedddp.core.shards import Shards
    from fedddp.records import split_picture
    from fedddp.runs.claim import home
    from fedddp.runs.clients import natural

    name, overrides = configuration.split_words(arguments.words)
    config = configuration.load(name, overrides)
    with waiting("reading the data"):
        data = config.data.load()
    with waiting("dealing it out"):
        shards = Shards.deal(config.split, data.train, config.seed_of("split"))
    counts = shards.count(data.train.targets, data.classes)
    sizes, names = shards.num_examples.numpy(), data.label_names
    who = natural(shards, data)
    experiment_name = home(name, config)
    title = f"{experiment_name}: {config.title('data')} by {config.title('split')}, seed {config.seed_of('split')}"
    out = arguments.out or Path("runs") / experiment_name / "split.png"
    out.parent.mkdir(parents=True, exist_ok=True)
    with waiting("drawing"):
        split_picture.draw(counts, sizes, title, names, who).savefig(out, dpi=150)
    print(split_picture.text(counts, sizes, names, who))
    print(f"split {shards.digest()}\n{out}")
    return 0
