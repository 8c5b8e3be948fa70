"""what can be named in a config: methods, solvers, models, data, partitions, experiments"""

import argparse

KINDS = {
    "methods": "method",
    "solvers": "local",
    "models": "model",
    "data": "data",
    "partitions": "split",
    "experiments": "",
}


def add(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", nargs="?", choices=list(KINDS))


def call(arguments: argparse.Namespace) -> int:
    from fedddp import registry
    from fedddp.config import experiments

    for kind in [arguments.kind] if arguments.kind else KINDS:
        if not arguments.kind:
            print(f"{kind}:")
        section = KINDS[kind]
        for name in registry.names(section) if section else experiments():
            about = registry.describe(section, name) if section else _first_comment(name)
            print(f"  {name:<22} {about}".rstrip())
    return 0


def _first_comment(experiment: str) -> str:
    from fedddp.config import folder

    first = (folder("experiment") / f"{experiment}.yaml").read_text().splitlines()[0]
    return first.removeprefix("# ") if first.startswith("#") else ""
