"""begin a project: a folder with an experiment, a model, a method and a test that all run"""

import argparse
from pathlib import Path

KINDS = (".yaml", ".py", ".md")  # what a project consists of


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="NAME", help="a folder that is not there yet, or empty")


def call(arguments: argparse.Namespace) -> int:
    from fedddp.config.loading import folder
    from fedddp.core.files import write_text

    into: Path = arguments.folder
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise ValueError(f"init {into}: is there already; name a folder that is not, or empty it")
    into.mkdir(parents=True, exist_ok=True)
    for file in sorted(path for path in folder("project").iterdir() if path.suffix in KINDS):
        write_text(into / file.name, file.read_text().replace("# NAME\n", f"# {into.resolve().name}\n", 1))
        print(into / file.name)
    print(f"\ncd {into}\nfedddp run experiment.yaml --ranks 2\npython -m pytest")
    return 0
