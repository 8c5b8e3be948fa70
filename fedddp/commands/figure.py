"""draw a figure of one of the papers anew"""

import argparse
from inspect import signature
from pathlib import Path

from fedddp.core.progress import waiting


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", help="without a name: list them")
    parser.add_argument("words", nargs="*", metavar="experiment or key=value", help="for figures of experiments")
    parser.add_argument("--out", type=Path, help="a .png, .svg or .pdf file (default: NAME.png)")


def call(arguments: argparse.Namespace) -> int:
    from importlib import import_module
    from pkgutil import iter_modules

    from fedddp import figures

    names = sorted(found.name for found in iter_modules(figures.__path__) if not found.name.startswith("_"))
    if arguments.name is None:
        for name in names:
            doc = import_module(f"fedddp.figures.{name}").__doc__ or ""
            print(f"  {name:<22} {doc.strip().splitlines()[0]}")
        return 0
    if arguments.name not in names:
        raise ValueError(f"figure {arguments.name}: unknown; choose one of {', '.join(names)}")
    out = arguments.out or Path(f"{arguments.name}.png")
    draw = import_module(f"fedddp.figures.{arguments.name}").draw
    if not arguments.words:
        with waiting(f"figure {arguments.name}"):
            draw(out)
    elif "experiment" in signature(draw).parameters:
        from fedddp.config.loading import split_words

        experiment, settings = split_words(arguments.words)
        with waiting(f"figure {arguments.name}"):
            draw(out, experiment=experiment, settings=settings)
    else:
        raise ValueError(f"figure {arguments.name}: takes no settings, so leave out {' '.join(arguments.words)}")
    print(out)
    return 0
