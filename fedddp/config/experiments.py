"""Where the built-in YAML files lie, and which file an experiment's name stands for."""

from pathlib import Path

from fedddp.core.check import hint


def stem(experiment: str) -> str:
    """The name of an experiment: of its file without the ending."""
    return Path(experiment).stem


def folder(kind: str) -> Path:
    """Where the built-in YAML files of a kind lie: in the installed package, or at the top of the source tree."""
    package = Path(__file__).parent.parent
    inside = package / "configs" / kind
    return inside if inside.is_dir() else package.parent / "configs" / kind


def experiments() -> list[str]:
    return sorted(path.stem for path in folder("experiment").glob("*.yaml"))


def is_file(name: str) -> bool:
    """A file of the user's rather than a built-in experiment."""
    return name.endswith((".yaml", ".yml"))


def experiment_file(name: str) -> Path:
    if is_file(name):
        if not Path(name).is_file():
            raise ValueError(f"{name}: no such file")
        return Path(name)
    path = folder("experiment") / f"{name}.yaml"
    if not path.is_file():
        raise ValueError(f"experiment {name}: unknown; {hint(name, experiments())} (or name a .yaml file)")
    return path
