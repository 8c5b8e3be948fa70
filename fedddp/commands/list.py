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
    from fedddp.config.loading import experiments
    from fedddp.core import registry

    for kind in [arguments.kind] if arguments.kind else KINDS:
        if not arguments.kind:
            print(f"{kind}:")
        section = KINDS[kind]
        for name in registry.names(section) if section else experiments():
            print(f"  {name:<22} {_about(section, name) if section else _first_comment(name)}".rstrip())
    return 0


def _about(section: str, name: str) -> str:
    """What it is and, where it does not come with fedddp, who brings it."""
    from fedddp.core import registry

    try:
        found = registry.look_up(section, name)
        text = registry.describe(section, name)
    except ValueError as error:  # of another's package, which must not hide all others
        return f"cannot be used: {error}"
    return text if found.plugin is None else f"{text} [{found.origin}: {found.plugin.name}]"


def _first_comment(experiment: str) -> str:
    from fedddp.config.loading import folder

    first = (folder("experiment") / f"{experiment}.yaml").read_text().splitlines()[0]
    return first.removeprefix("# ") if first.startswith("#") else ""
